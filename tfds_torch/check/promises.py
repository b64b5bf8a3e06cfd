"""Which promises of every read mode the examples that came keep. Pure: no files, no processes."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfds_torch.check.expectation import Expectation
from tfds_torch.check.ledger import EpochCounts, Ledger, RankEpoch
from tfds_torch.check.verdict import NUM_SHOWN, CappedList, Promise
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.mixed import Mixed


@dataclass(frozen=True)
class Allowance:
    """How far an epoch may be from every example exactly once.

    Attributes:
        name: of the promise.
        num_padded: padded examples, exactly so many.
        num_missing: examples that may be missing.
        num_twice: examples that may come too often, each counted as often as it does.
        most_each: by how much one example may come too often.
    """

    name: str
    num_padded: int
    num_missing: int = 0
    num_twice: int = 0
    most_each: int = 0


def judge(ledger: Ledger, *, is_whole: bool = True) -> list[Promise]:
    """Returns the promises that what came can prove, kept or broken.

    Args:
        ledger: what came.
        is_whole: False: the reading was interrupted; what ended is judged, and nothing else is missed.
    """
    ended = [summary for _, summary in sorted(ledger.ended.items())]
    whole = [epoch for epoch in range(ledger.expected.num_epochs) if is_whole or epoch in ledger.counts]
    counts = {epoch: ledger.counts.get(epoch) or ledger.count(epoch) for epoch in whole}
    if not ended and not is_whole:
        return []
    order = ledger.expected.plan.order
    promises = [
        _equal_batches(ledger, ended, is_whole),
        _full_batches(ledger, ended),
        make_promise("ids as promised", _merge(one.unknown for one in ended), "all known"),
        *([_exactly_once(ledger.expected, list(counts.values()))] if counts else []),
        *([_member_shares(ledger, order, counts)] if counts and isinstance(order, Mixed) else []),
        _padding(ledger.expected, ended, counts),
        _own_share(ended),
    ]
    # Of an endless row that is not shuffled, the next epoch is the next part of it.
    is_repeated = order.shuffle or not order.is_endless
    return promises + ([_order(ledger.expected, ended)] if len(whole) > 1 and is_repeated else [])


def make_promise(name: str, wrong: CappedList, detail: str) -> Promise:
    """Returns a promise, kept when nothing is wrong; else its detail is what is wrong."""
    return Promise(name, not wrong, str(wrong) or detail)


def _merge(parts: Iterable[CappedList]) -> CappedList:
    merged = CappedList()
    for part in parts:
        merged.extend(part)
    return merged


def _equal_batches(ledger: Ledger, ended: list[RankEpoch], is_whole: bool) -> Promise:
    expected = ledger.expected
    wanted = expected.plan.num_batches
    planned = {key for epoch in range(expected.num_epochs) for key in ledger.keys_of(epoch)} if is_whole else set()
    wrong = CappedList(f"{RankEpoch(*key)}: came 0 times" for key in sorted(planned - ledger.ended.keys()))
    wrong.extend(f"{name}: came more than once" for name in ledger.again)
    wrong.extend(
        f"{one}: {one.num_batches} came, {one.num_announced} announced, {wanted} planned"
        for one in ended
        if not one.num_batches == one.num_announced == wanted
    )
    if wrong and expected.last_size < expected.plan.batch_size:
        reason = "its loader drops a short last batch (drop_last), and the parser plans one"
        droppers = CappedList(f"rank {rank}: {reason}" for rank, end in sorted(ledger.loaders.items()) if end.drop_last)
        droppers.extend(wrong)
        wrong = droppers
    return make_promise("equal numbers of batches", wrong, f"{wanted} on every rank, as len(loader) says")


def _full_batches(ledger: Ledger, ended: list[RankEpoch]) -> Promise:
    plan, last = ledger.expected.plan, ledger.expected.last_size
    wrong = CappedList(
        f"rank {rank}: its loader's batch_size is {end.loader_batch_size}, the parser's {plan.batch_size}"
        for rank, end in sorted(ledger.loaders.items())
        if end.loader_batch_size not in (None, plan.batch_size)
    )
    wrong.extend(_merge(one.sizes for one in ended))
    is_short = plan.num_batches > 0 and last < plan.batch_size
    return make_promise(
        "every batch full", wrong, f"batches of {plan.batch_size}" + (f", the last of {last}" * is_short)
    )


def _exactly_once(expected: Expectation, counts: list[EpochCounts]) -> Promise:
    allowed = allow(expected)
    missing = max((count.missing for count in counts), key=lambda some: some.number)
    twice = max((count.twice for count in counts), key=lambda some: some.number)
    too_often, id = max(count.most_often for count in counts)
    detail = f"{missing.number} missing (allowed {allowed.num_missing})"
    detail += f", {twice.number} twice (allowed {allowed.num_twice})"
    is_short = missing.number > allowed.num_missing
    is_repeated = twice.number > allowed.num_twice or too_often > allowed.most_each
    if is_short:
        detail += f"; missing: {missing}"
    if is_repeated:
        detail += f"; twice: {id if too_often > allowed.most_each else twice}"
    return Promise(allowed.name, not is_short and not is_repeated, detail)


def allow(expected: Expectation) -> Allowance:
    """Returns what an epoch may leave out, repeat and pad."""
    plan, promised = expected.plan, expected.plan.order.promise()
    total = plan.num_own_slots
    num_slots = plan.num_batches * plan.global_batch_size
    num_padded = num_slots - plan.num_valid if plan.remainder is Remainder.PAD else 0
    if plan.order.is_endless:  # Over all epochs: see `Ledger.count`.
        num_dropped = (total - plan.num_valid) * expected.num_epochs
        name = f"{promised.who} {promised.often}" + (", and the wrapped few" if num_slots > total else "")
        return Allowance(name, num_padded, num_dropped)
    if expected.mode == "files":
        name = "every example once, but for uneven files"
        return Allowance(name, num_padded, expected.num_unread, expected.num_repeated, expected.num_repeated)
    if plan.remainder is Remainder.WRAP and num_slots > total:
        name = f"{promised.who} {promised.often}, and the wrapped few"
        num_wrapped = num_slots - total
        most_each = int((promised.count(num_slots)[1] - promised.count(total)[0]).max())
        return Allowance(name, num_padded, 0, num_wrapped, most_each)
    if plan.num_valid < total:
        return Allowance(f"{promised.who} {promised.often}, but the dropped few", num_padded, total - plan.num_valid)
    return Allowance(f"{promised.who} exactly {promised.often}", num_padded)


def _member_shares(ledger: Ledger, mixture: Mixed, counts: dict[int, EpochCounts]) -> Promise:
    """Judges a mixture with weights: every window's end within 1 of n x weight, and as many as `counts` announces."""
    wrong, most = CappedList(), 0.0
    for epoch, count in counts.items():
        for one in count.members:
            off = one.most_off or 0.0
            most = max(most, off)
            if one.num_valid != one.num_planned:
                wrong.add(f"epoch {epoch}, {one.name}: {one.num_valid} came, {one.num_planned} announced")
            elif not one.is_within:
                wrong.add(f"epoch {epoch}, {one.name}: {off:.2f} examples from n x weight")
    num_parts = len(mixture.segments)
    allowed = "allowed 1" if num_parts == 1 else "allowed 1 in each part of the schedule"
    windows = "" if ledger.members is None else f" at the ends of {ledger.members.num_windows} windows an epoch"
    detail = f"at most {most:.2f} examples from n x weight{windows} ({allowed})"
    return make_promise(f"every {mixture.whose} has its share", wrong, detail)


def _padding(expected: Expectation, ended: list[RankEpoch], counts: dict[int, EpochCounts]) -> Promise:
    wanted = allow(expected).num_padded
    wrong = CappedList(
        f"epoch {epoch}: {count.num_padded} padded" for epoch, count in counts.items() if count.num_padded != wanted
    )
    for parts in ((one.places for one in ended), (one.labels for one in ended)):
        wrong = wrong or _merge(parts)
    return make_promise("padding only where planned", wrong, f"{wanted} per epoch")


def _own_share(ended: list[RankEpoch]) -> Promise:
    wrong = _merge(one.share for one in ended)
    return Promise("every rank reads its own share", not wrong, "; ".join(wrong.first[:NUM_SHOWN]) or "as planned")


def _order(expected: Expectation, ended: list[RankEpoch]) -> Promise:
    orders: dict[tuple[int, int], list[bytes]] = {}
    small = {summary.rank for summary in ended if summary.is_small}
    for summary in ended:
        for worker, order in enumerate(summary.worker_orders):
            orders.setdefault((summary.rank, worker), []).append(order)
    wrong = CappedList()
    for (rank, worker), its_orders in orders.items():
        num_different = len(set(its_orders))
        if expected.plan.order.shuffle and rank in small:
            continue
        if num_different != (len(its_orders) if expected.plan.order.shuffle else 1):
            wrong.add(f"rank {rank}, worker {worker}: {num_different} of {len(its_orders)} orders differ")
    num_epochs = len({summary.epoch for summary in ended})
    if expected.plan.order.shuffle:
        return make_promise("another order in every epoch", wrong, f"{num_epochs} different epochs")
    return make_promise("the same order in every epoch", wrong, f"{num_epochs} equal epochs")
