"""`loracle offers`: what providers ask, and the door to quotes, rates and live prices."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.narrow import narrow_table
from loracle.cli.offers_add import add, rate, remove
from loracle.cli.offers_quote import quote
from loracle.cli.offers_refresh import refresh
from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from loracle.domain.offer import Offer
    from loracle.estimate.money import PeriodPrice

app = typer.Typer(
    help=words.text("help.offers"),
    add_completion=False,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("quote", help=words.text("help.offer.quote"))(quote)
app.command("add", help=words.text("help.offer.add"))(add)
app.command("remove", help=words.text("help.offer.remove"))(remove)
app.command("rate", help=words.text("help.offer.rate"))(rate)
app.command("refresh", help=words.text("help.offer.refresh"))(refresh)

_ORDERS = ("price", "provider", "gpu")


@app.callback()
def list_offers(
    ctx: typer.Context,
    gpu: str = typer.Option(None, "--gpu", help=words.text("help.offer.gpu")),
    provider: str = typer.Option(None, "--provider", help=words.text("help.offer.provider")),
    by: str = typer.Option("price", "--by", help=words.text("help.offer.by")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    form: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """List the offers, cheapest month first; a group, so that `offers quote ID` works too."""
    if ctx.invoked_subcommand is not None:
        return
    from loracle.catalog.fx import load_rates
    from loracle.catalog.offers import load_offers
    from loracle.cli.today import today
    from loracle.errors import InputError

    output = Output("json" if as_json else "quiet" if quiet else form)
    if by not in _ORDERS:
        raise InputError("error.offer.order", code="E010", value=by, choices=", ".join(_ORDERS))
    offers = _chosen(load_offers(), gpu, provider)
    rates = load_rates()
    offers = sorted(offers, key=lambda offer: _order(offer, by, rates))
    if output.mode == "json":
        from loracle.cli.offers_json import list_document

        output.json(list_document(offers, rates, today()))
    elif output.mode == "quiet":
        for offer in offers:
            output.line(offer.id)
    else:
        _show(output, offers, today())


def _chosen(offers: "tuple[Offer, ...]", gpu: str | None, provider: str | None) -> "list[Offer]":
    from loracle.catalog.gpus import find_gpu
    from loracle.errors import CatalogError

    wanted: set[str] | None = None
    if gpu is not None:
        try:
            wanted = {find_gpu(gpu).id}
        except CatalogError:
            wanted = _cards_like(gpu)
            if not wanted:
                raise
    text = (provider or "").lower()
    return [
        offer
        for offer in offers
        if (wanted is None or offer.node.gpu_id in wanted) and text in offer.provider.lower()
    ]


def _cards_like(name: str) -> set[str]:
    """A name that several cards share (`A100`) filters for all of them."""
    from loracle.catalog.gpus import load_gpus
    from loracle.catalog.names import card_words

    words_ = card_words(name)
    return {gpu.id for gpu in load_gpus() if words_ and words_ <= card_words(gpu.name)}


def _order(offer: "Offer", by: str, rates: object) -> tuple[object, ...]:
    from loracle.estimate.money import offered_terms, period_price

    price = period_price(offer, offered_terms(offer)[0])
    month = _in_cny(price.per_month, rates)
    if by == "provider":
        return (offer.provider, month, offer.id)
    if by == "gpu":
        return (offer.node.gpu_id, month, offer.id)
    return (month, offer.id)


def _in_cny(money: object, rates: object) -> object:
    from decimal import Decimal

    from loracle.domain.money import convert
    from loracle.errors import InputError

    try:
        return convert(money, "CNY", rates).amount  # type: ignore[arg-type]
    except InputError:
        return Decimal("Infinity")  # a currency without a rate sorts last


def _show(output: Output, offers: "list[Offer]", today: str) -> None:
    from loracle.catalog.gpus import load_gpus
    from loracle.estimate.money import is_stale, offered_terms, period_price

    if not offers:
        output.note(output.text("offers.none"))
        return
    names = {gpu.id: gpu.name for gpu in load_gpus()}
    old = [is_stale(offer, today) for offer in offers]
    guessed = [offer.provenance == "estimated" for offer in offers]
    rows = []
    for offer, is_old in zip(offers, old, strict=True):
        terms = offered_terms(offer)
        first, last = period_price(offer, terms[0]), period_price(offer, terms[-1])
        long_term = f"{_price(output, last)} ({output.text(f'offers.period.{last.term}')})"
        rows.append(
            [
                offer.id,
                _cards(offer, names),
                _price(output, first),
                long_term if len(terms) > 1 else "",
                offer.as_of,
                _marks(output, offer, is_old),
            ]
        )
    headings = ("id", "card", "price", "long_term", "date", "mind")
    narrow_table(
        output,
        [
            Column(output.text(f"offers.{name}"), right=name in ("price", "long_term"))
            for name in headings
        ],
        rows,
        least_needed=[headings.index(name) for name in ("date", "long_term")],
        dim=[index for index, guess in enumerate(guessed) if guess],
    )
    if any(old):
        output.hint("offers.some_old", count=sum(old))
    if any(guessed):
        output.hint("offers.some_estimated", count=sum(guessed))


def _marks(output: Output, offer: "Offer", is_old: bool) -> str:
    """`estimate, old`: what to mind, in words and not in colour; a listed price needs none."""
    listed = offer.provenance == "listed"
    marks = [] if listed else [output.text(f"offers.provenance.{offer.provenance}")]
    if is_old:
        marks.append(output.text("offers.old"))
    if offer.risk and words.has(f"offers.mark.{offer.risk}"):
        marks.append(output.text(f"offers.mark.{offer.risk}"))
    return ", ".join(marks)


def _cards(offer: "Offer", names: dict[str, str]) -> str:
    from loracle.units import gib

    node = offer.node
    name = names.get(node.gpu_id, node.gpu_id).removeprefix("GeForce ").removeprefix("Tesla ")
    count = f"{node.num_gpus} x " if node.num_gpus > 1 else ""
    part = f" / {gib(node.memory_bytes, 0)}" if node.memory_bytes else ""
    return f"{count}{name}{part}"


def _price(output: Output, price: "PeriodPrice") -> str:
    from loracle.units import money

    amount = price.amount.amount
    digits = 0 if amount == amount.to_integral_value() else 2
    period = output.text(f"offers.period.{price.period}")
    return f"{money(amount, price.amount.currency, digits)}/{period}"
