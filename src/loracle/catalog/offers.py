"""The offers: shipped price lines, the user's own quotes, and the last snapshot of live prices.

A user's quote wins over a shipped offer with the same id. Quotes are YAML files in `offers/` of
the config folder, one an offer, so they can be read, edited and shared without loracle.
"""

from functools import cache
from pathlib import Path

from loracle.catalog.folders import config_folder, read_yaml, write_whole
from loracle.catalog.names import nearest
from loracle.catalog.offer_file import OfferRow, offer_of, rows_of, text_of
from loracle.catalog.prices_gpuhunt import snapshot_offers
from loracle.domain.offer import Offer
from loracle.errors import CatalogError

DATA = Path(__file__).parent / "data" / "offers"


def quote_folder() -> Path:
    """Where the user's quotes live."""
    return config_folder() / "offers"


def load_offers(*, user_folder: Path | None = None, live: bool = True) -> tuple[Offer, ...]:
    """Every offer: shipped, then live prices, then the user's, each id once (the last one wins).

    `user_folder` holds the user's quotes, by default `offers` in the config folder; `live` says
    whether the last snapshot of `loracle offers refresh` counts. Raises InputError or CatalogError
    E035 for a broken file and E031 for a quote on a card that is not known.
    """
    found = {offer.id: offer for offer in _shipped_offers()}
    if live:
        found |= {offer.id: offer for offer in snapshot_offers()}
    found |= {offer.id: offer for offer in _quotes(user_folder or quote_folder())}
    return tuple(found.values())


def find_offer(id: str, *, user_folder: Path | None = None) -> Offer:  # noqa: A002
    """The offer with this id, in any case; raises CatalogError E034 with the nearest ids."""
    offers = {offer.id: offer for offer in load_offers(user_folder=user_folder)}
    wanted = id.strip().lower()
    if wanted in offers:
        return offers[wanted]
    names = nearest(wanted, offers)
    raise CatalogError(
        "error.offer.unknown",
        code="E034",
        hints=(["hint.catalog.nearest"] if names else []) + ["hint.offer.list"],
        id=id,
        names=", ".join(names),
    )


def add_quote(row: OfferRow, *, folder: Path | None = None, replace: bool = False) -> Path:
    """Keep a quote as `<id>.yaml` and return the path; the whole file or nothing is written.

    Raises CatalogError E031 for an unknown card, E034 where the id is taken and `replace` is
    not set, E035 where the file cannot be written.
    """
    offer_of(row)  # a quote on an unknown card must not get in
    path = (folder or quote_folder()) / f"{row.id}.yaml"
    taken = path.exists() or row.id in {offer.id for offer in load_offers(user_folder=folder)}
    if taken and not replace:
        raise CatalogError("error.offer.taken", code="E034", hint="hint.offer.taken", id=row.id)
    write_whole(path, text_of(row))
    return path


def remove_quote(id: str, *, folder: Path | None = None) -> Path:  # noqa: A002
    """Delete a quote of the user's and return where it was.

    Raises CatalogError E034 where the user has no quote with this id; shipped offers stay.
    """
    home = folder or quote_folder()
    for path in _files(home):
        rows = rows_of(read_yaml(path), path)
        if any(row.id == id for row in rows):
            if len(rows) > 1:
                raise CatalogError(
                    "error.offer.shared_file", code="E034", id=id, path=str(path), count=len(rows)
                )
            path.unlink()
            return path
    own = [row.id for path in _files(home) for row in rows_of(read_yaml(path), path)]
    raise CatalogError(
        "error.offer.not_yours",
        code="E034",
        hint="hint.offer.yours" if own else "hint.offer.none_yours",
        id=id,
        names=", ".join(own),
    )


def _quotes(folder: Path) -> tuple[Offer, ...]:
    return tuple(offer_of(row) for path in _files(folder) for row in rows_of(read_yaml(path), path))


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml"), *folder.glob("*.json")])


@cache
def _shipped_offers() -> tuple[Offer, ...]:
    paths = sorted(DATA.glob("*.yaml"))
    return tuple(offer_of(row) for path in paths for row in rows_of(read_yaml(path), path))
