"""What storage clients and the system raise, as errors that say what to do.

Errors of reading stay OSErrors, because callers tell FileNotFoundError from the rest; those of writing do not.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from .errors import TransientError, UsageError, one_line

#: by name, because no client need be installed: botocore's, google.auth's and azure's
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "ProfileNotFound",
        "DefaultCredentialsError",
        "CredentialUnavailableError",
    }
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_IN_THE_WAY = (FileExistsError, NotADirectoryError, IsADirectoryError)


@contextlib.contextmanager
def accessing(where: str) -> Iterator[None]:
    """Raises UsageError where a client found no credentials; any other error as it is."""
    try:
        yield
    except Exception as error:
        if not any(kind.__name__ in _NO_CREDENTIALS for kind in type(error).__mro__):
            raise
        hint = "Set them as the storage's own tools need them, for S3 AWS_ACCESS_KEY_ID and the like or AWS_PROFILE"
        raise UsageError(f"no credentials for {where}: {one_line(error)}", hint) from error


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """As ``accessing``. Raises TransientError for an OSError that may pass, a full disk too; UsageError where ``path``
    can't be written whenever one tries."""
    try:
        with accessing(path):
            yield
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: str, error: OSError) -> TransientError | UsageError:
    why = f"can't write {path}: {error.strerror or one_line(error)}"
    if error.errno in _FULL:
        return TransientError(why, "Free some space there, then run the same command again")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return UsageError(why, "Check the permissions and the credentials")
    if isinstance(error, _IN_THE_WAY):
        return UsageError(why, "Move away what is in the way: a file where a folder belongs, or a folder for a file")
    return TransientError(why, "Check the storage, then run the same command again")
