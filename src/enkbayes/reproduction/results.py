"""Results as files: a folder for each experiment with result.json, a .csv for each table and a .png for each figure."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from enkbayes.core.numerics import for_json
from enkbayes.reproduction.findings import Claim, Findings, Setting, Table, overall
from enkbayes.storage.files import replacing

RESULT = "result.json"
DPI = 110


@dataclass(frozen=True)
class Picture:
    """A figure in the experiment's folder."""

    file: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Result:
    """A finished experiment: its findings, and the size, date, duration and library versions of the run.

    `key` names the settings of the run; a result with another key belongs to another run.
    """

    name: str
    title: str
    about: str
    size: str
    key: str
    made: str
    seconds: float
    versions: dict[str, str]
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The verdict on all claims together."""
        return overall(tuple(claim.verdict for claim in self.claims))


def write(out: Path, findings: Findings, **about: Any) -> Result:
    """Write everything into out/<name> and return the result. `about` holds the remaining fields of `Result`.

    An earlier result.json is removed first and the new one is written last, so that an interrupted run leaves none.
    """
    folder = out / about["name"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).unlink(missing_ok=True)
    for table in findings.tables:
        _write_csv(folder / f"{table.name}.csv", table)
    pictures = []
    for drawing in findings.drawings:
        file = f"{drawing.name}.png"
        with replacing(folder / file) as draft:
            drawing.figure.savefig(draft, dpi=DPI, metadata={"Software": None})
        pictures.append(Picture(file, drawing.alt, drawing.caption))
    result = Result(
        claims=findings.claims,
        tables=findings.tables,
        pictures=tuple(pictures),
        settings=findings.settings,
        notes=findings.notes,
        **about,
    )
    with replacing(folder / RESULT) as draft:
        text = json.dumps(for_json(asdict(result) | {"verdict": result.verdict}), indent=1, allow_nan=False)
        draft.write_text(text + "\n", encoding="utf-8")
    return result


def read(out: Path, name: str) -> Result | None:
    """Return the result of an experiment, or None if result.json is missing or unreadable."""
    try:
        found = json.loads((out / name / RESULT).read_text(encoding="utf-8"))
        found.pop("verdict", None)  # it follows from the claims
        return Result(
            **found
            | {
                "claims": tuple(Claim(**claim) for claim in found["claims"]),
                "tables": tuple(_table(table) for table in found["tables"]),
                "pictures": tuple(Picture(**picture) for picture in found["pictures"]),
                "settings": tuple(Setting(**setting) for setting in found["settings"]),
                "notes": tuple(found["notes"]),
            }
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _table(found: dict[str, Any]) -> Table:
    rows = tuple(tuple(row) for row in found["rows"])
    return Table(found["name"], found["caption"], tuple(found["columns"]), rows)


def _write_csv(path: Path, table: Table) -> None:
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(table.rows)
