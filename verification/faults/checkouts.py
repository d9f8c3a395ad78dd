"""Executors are killed while checkouts charge, wait, and ship or refund. The books balance, and none is lost."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from verification.faults.checker import FINAL, RuleViolation
from verification.faults.environment import FaultEnvironment
from verification.faults.fault_runner import FaultPlan, FaultRunner
from verification.faults.figures import Figures, check_run

# What the payment service and the shop have booked. The service knows idempotency keys: a repeated call books nothing.
BOOKS = """
    CREATE TABLE verification_booking (
        id bigserial PRIMARY KEY, kind text, number int, key text, amount int, calls int DEFAULT 1, UNIQUE (kind, key)
    )
"""
RULE = "books"


@dataclass(frozen=True, slots=True)
class CheckoutPlan:
    """How many checkouts there are, how many begin each second, and how often an executor is killed."""

    checkouts: int = 2_000
    each_second: float = 30.0
    gap_seconds: float = 1.0
    strength: int = 5


def run_checkouts(env: FaultEnvironment, seed: int, plan: CheckoutPlan) -> Figures:
    """Kill an executor in each gap while people check out. Let all checkouts finish, and compare the books."""
    began = time.monotonic()
    env.query(BOOKS)
    flags = ("--threads", "8", "--async-slots", "4")
    runner = FaultRunner(
        env, seed, FaultPlan({}, pause_seconds=5.0, strength=plan.strength, behind_proxy=0.0, flags=flags)
    )
    shopper = env.launch("shopper", seed=seed, checkouts=plan.checkouts, each_second=plan.each_second)
    runner.begin()
    kills, next_kill = 0, time.monotonic()
    while shopper.is_alive:
        runner.kill_executor()
        kills += 1
        runner.start_missing_executors()
        next_kill += plan.gap_seconds
        runner.wait(next_kill - time.monotonic())
    env.wait_for_good_end(shopper)
    env.finish()
    figures = check_run(env, kills, began)
    figures.violations += [RuleViolation(RULE, text) for text in unbalanced(env, plan.checkouts)]
    return figures


def unbalanced(env: FaultEnvironment, checkouts: int) -> Iterator[str]:
    """Yield what is wrong in the books."""
    status = {
        str(pk): (state, result)
        for pk, state, result in env.query("SELECT id, status, return_value FROM jobqueue_task")
    }
    booked: defaultdict[int, Counter[str]] = defaultdict(Counter)
    totals: Counter[str] = Counter()
    for kind, number, amount in env.query("SELECT kind, number, amount FROM verification_booking"):
        booked[number][kind] += 1
        totals[kind] += amount
    ordered = env.history().noted("ordered")
    if len(ordered) != checkouts:
        yield f"{len(ordered)} checkouts of {checkouts} were acknowledged"
    for note in ordered:
        state, result = status.get(str(note["task"]), ("missing", None))
        books, where = booked[note["number"]], f"checkout {note['number']} ({note['task']}, {state} {result})"
        if state not in FINAL:
            yield f"{where} is lost"
        if max(books.values(), default=0) > 1:
            yield f"{where} was booked twice: {dict(books)}"
        is_shipped = result == "shipped"
        wanted = {"charge", "sale"} if is_shipped else {"charge", "refund"}
        if state == "CANCELLED" and not books:
            continue  # before its charge
        if set(books) != wanted:
            yield f"{where} is booked as {dict(books)}"
        if state == "FAILED":
            yield f"{where} has failed"
    if totals["charge"] != totals["refund"] + totals["sale"]:
        yield f"the books do not balance: {dict(totals)}"
    open_ones = env.query(
        "SELECT count(*) FROM jobqueue_journalentry WHERE kind = 'COMPENSATION' AND status IN ('WAITING', 'RETRYING')"
    )
    if open_ones != [(0,)]:
        yield f"{open_ones[0][0]} compensations are open"
