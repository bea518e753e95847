"""All that is looked up before a run: artifact, listing, ledger, plan. Reads only."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..artifacts.bundle import Bundle, open_bundle
from ..artifacts.errors import SinkError
from ..artifacts.hardware import choose_variant, this_cpu
from ..artifacts.manifest import Variant
from ..artifacts.storage import Folder
from ..workers.footer import Footer
from ..workers.schema import check_names
from ..workers.shard import FileIdentity
from .contract import Contract, load_contract
from .groups import load_groups
from .ledger import read_ledger
from .planner import PlannedJob, make_plan
from .records import LedgerView
from .sink import check as check_places
from .source import list_source
from .spec import Job


@dataclass(frozen=True)
class Prepared:
    job: Job
    bundle: Bundle
    variant: Variant
    sink: Folder
    state: Folder
    listed: Mapping[str, FileIdentity]  #: every source file, also those that no predicate selects
    view: LedgerView
    planned: PlannedJob

    def is_current(self, footer: Footer) -> bool:
        """Whether a part found in the sink is one that this job would make of the files as they are now."""
        return footer.fingerprint == self.planned.score.fingerprint and all(
            self.listed.get(piece.file.path) == piece.file for piece in footer.pieces
        )


def prepare(job: Job, retry_quarantined: bool = False, earlier: Contract | None = None) -> Prepared:
    """``earlier`` is the contract of a plan made just before: what it learned of the files is not read again.

    Raises UsageError and its kinds, ArtifactCorrupt, LimitExceeded for a half-empty listing."""
    bundle = open_bundle(job.artifact, job.artifact_options)
    variant = choose_variant(bundle.content.variants, this_cpu(), job.pinned_variant())
    sink_folder = Folder(job.sink.path, job.sink.storage_options)
    state = Folder(job.state_url(), job.sink.storage_options)
    check_places(sink_folder, state, job.source.paths(), job.source.storage_options)
    listing = list_source(job.source.paths(), job.source.storage_options)
    view = read_ledger(state)
    groups, contract = load_groups(state), load_contract(state)
    if earlier is not None:
        contract = earlier if contract is None else dataclasses.replace(contract, known=earlier.known)
    planned = make_plan(job, bundle, variant, listing, view, groups, contract, retry_quarantined)
    _refuse_lost_sink(sink_folder, state, view)  # after the planner, which knows whether it is this sink's state
    check_names(planned.score, bundle.content)
    return Prepared(job, bundle, variant, sink_folder, state, listing.by_path, view, planned)


def _refuse_lost_sink(sink: Folder, state: Folder, view: LedgerView) -> None:
    """A sink that was deleted while its state was kept would be taken for complete."""
    if not view.parts or _has_files(sink):
        return
    hint = f"to score everything anew delete the state too: {state.url}; if the sink was moved, move it back"
    raise SinkError(f"the ledger tells of {len(view.parts):,} parts, the sink has no file: {sink.url}", hint)


def _has_files(sink: Folder) -> bool:
    """Without listing all of it: a run with nothing to do takes a second."""
    if sink.is_local:
        return any(files for _, _, files in os.walk(sink.root))
    return sink.exists("")
