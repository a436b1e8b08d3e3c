"""What a folder may contain before anything in it is read: files and folders, and no links out of a received one."""

import os
from pathlib import Path


def check_folder(folder: Path, *, received: bool = False) -> None:
    """Refuse pipes, devices and sockets, also behind links: reading them would not end.

    Links to files and folders elsewhere are read, such as ``observations`` on another disk; what is behind a link to a
    folder is not searched.

    Args:
        folder: that of a run or of a model; another name is not checked.
        received: whether somebody else made the folder: then links that leave it are refused as well.

    Raises:
        ValueError: if there is such an entry; the message says what to do.
    """
    pending = [folder] if folder.is_dir() else []
    whole = os.path.realpath(folder)
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if received and entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if os.path.commonpath([target, whole]) != whole:
                        raise ValueError(
                            f"{entry.path} is a link to {target}, outside the folder. --untrusted follows no such "
                            "link: remove the link, or replace the link with the file"
                        )
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif not (entry.is_file() or entry.is_dir()) and Path(entry.path).exists():
                    raise ValueError(
                        f"{entry.path} is neither a file nor a folder, but e.g. a pipe, and reading may never end: "
                        f"remove {entry.name}"
                    )
