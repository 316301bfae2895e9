"""Where the layers of the database lie: packaged < site < shared < user. Reads go through all of them, writes to the last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fuseplan.tuning_db.addresses import SharedPlans
from fuseplan.tuning_db.schema import VERSION

SHIPPED = Path(__file__).parent / "shipped.sqlite3"
SITE = Path("/etc/xdg/fuseplan/tuning.db")

_NETWORK = frozenset(
    "nfs nfs4 cifs smb smbfs smb2 smb3 9p afs ceph coda glusterfs gpfs lustre ncpfs panfs pvfs2 orangefs beegfs davfs"
    " fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse fuse.rclone fuse.juicefs fuse.lustre virtiofs".split()
)


@dataclass(frozen=True)
class Places:
    """The files of each layer; None for a layer that there is none of."""

    user: Path | None
    site: Path | None = None
    packaged: Path | None = None
    shared: SharedPlans | None = None
    """Of an organisation."""


def places(environ: Mapping[str, str], db: str | Path | None = None) -> Places:
    """Where the layers are for this user. `db` comes before FUSEPLAN_DB, and that before the cache folder.

    >>> places({"HOME": "/home/ada"}).user
    PosixPath('/home/ada/.cache/fuseplan/tuning.db')
    >>> places({"FUSEPLAN_DB": "/data/tuning.db"}).user
    PosixPath('/data/tuning.db')
    """
    named, shared = db or environ.get("FUSEPLAN_DB"), environ.get("FUSEPLAN_SHARED")
    cached = _cached(environ)
    user = Path(named).absolute() if named else cached
    return Places(user, SITE, SHIPPED, _shared(shared, cached) if shared else None)


@cache
def _shared(named: str, cached: Path | None) -> SharedPlans:
    return SharedPlans.of(named, None if cached is None else cached.parent / "shared", VERSION)


def _cached(environ: Mapping[str, str]) -> Path | None:
    cache = environ.get("XDG_CACHE_HOME", "")
    if Path(cache).is_absolute():  # the standard says that a relative one is to be ignored
        return Path(cache) / "fuseplan" / "tuning.db"
    home = environ.get("HOME") or environ.get("USERPROFILE") or ""
    return Path(home) / ".cache" / "fuseplan" / "tuning.db" if Path(home).is_absolute() else None


def network_file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of the network file system that holds `path`, whose locks may not hold; None if it is local or unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        place = path.resolve()
    except (OSError, RuntimeError):
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        mounted = Path(
            re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        )  # a space stands as \\040
        if place.is_relative_to(mounted) and (best is None or len(mounted.parts) >= best[0]):
            best = (len(mounted.parts), kinds[0])
    return best[1] if best is not None and best[1] in _NETWORK else None
