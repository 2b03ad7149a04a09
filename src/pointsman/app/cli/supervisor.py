"""Supervisor: the parent of several front ends. Starts them by fork, starts again what ends, replaces them one by one.

A new front end listens at the sockets of the one that it replaces, and has asked all engines, before the old one
accepts no more; and the sockets are the supervisor's. So no connection is lost on the way.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from pointsman.app.cli.child import in_child
from pointsman.app.cli.main import EXIT_ERROR, EXIT_INTERRUPTED
from pointsman.app.cli.seats import Seat, take_seat
from pointsman.app.cli.siblings import SiblingsFile
from pointsman.app.cli.signals import Signals
from pointsman.app.cli.switchboard import Switchboard
from pointsman.core.model.errors import PointsmanError
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.rollout_order import Orders
from pointsman.edge.serving.settings import configured_orders

_log = logging.getLogger("pointsman.cli")

RESTART_PAUSE_S = 1.0
"""Doubles with each one in a row that ends soon, up to the next."""
MOST_PAUSE_S = 30.0
LIVED_S = 10.0
"""One that ran so long starts again without a pause."""
POLL_S = 0.05
PARKED_AFTER_S = 5.0
"""Without a front end: clients that wait at its seat are sent away then, and others come to other seats."""
SILENT_S = 5.0
"""A front end whose event loop stood still for so long is named in the log."""
HUNG_S = 20.0
"""And after so long it is killed: the kernel gives it connections, which nobody accepts."""
_MOST_TURN_S = 1.0
"""When the supervisor itself stood still for longer, front ends may have done so, too."""
REPLACE_LIMIT_S = 60.0
"""For a new front end to listen."""
STOP = (signal.SIGINT, signal.SIGTERM)
ALL = (*STOP, signal.SIGHUP)

Serve = Callable[[int, ConfigTree, Seat, socket.socket, Orders], int]
"""What a child does: number of its seat, configuration, where it listens, its line, who decides there."""


@dataclass(slots=True)
class _Child:
    number: int
    """Unique for ever; its line's."""
    seat: int
    began_s: float
    retiring: bool = False
    new: bool = False
    """It shall replace another one and does not listen yet."""
    silent_s: float | None = None
    """How long its event loop stood still; None: it has not begun to turn."""


class Supervisor:
    """Runs no event loop and no thread, so fork is safe.

    Args:
        trees: a configuration a seat.
        kill_after_s: what front ends get to stop.
        reread: the configurations anew. Raises PointsmanError; then nothing changes.
    """

    def __init__(
        self,
        trees: Sequence[ConfigTree],
        seats: Sequence[Seat],
        serve: Serve,
        kill_after_s: Callable[[ConfigTree], float],
        siblings: SiblingsFile | None,
        reread: Callable[[], list[ConfigTree]],
    ) -> None:
        self._trees = list(trees)
        self._trees_before: list[ConfigTree] | None = None
        self._seats = list(seats)
        self._serve = serve
        self._kill_after_s = kill_after_s
        self._siblings = siblings
        self._reread = reread
        self._written: list[str] = []
        self._board = Switchboard(configured_orders(trees[0]))
        self._children: dict[int, _Child] = {}
        self._number = 0
        self._due = dict.fromkeys(range(len(seats)), 0.0)
        """When a seat without a front end gets one."""
        self._heard_s: dict[int, float] = {}
        """When a front end last listened at a seat, or was started there; its sockets may accept connections since."""
        self._parked: set[int] = set()
        self._short_lives: Counter[int] = Counter()
        """Front ends of a seat in a row that ended soon."""
        self._watched_s = time.monotonic()
        """When it was last looked whether front ends stand still."""
        self._left: list[int] = []
        """Seats whose front ends are to be replaced yet."""
        self._said_waiting = False
        self._orders_due: Orders | None = None
        """In force once a front end has shown that it can obey them."""
        self._roll_over = False
        self._stops = 0
        self._signals = Signals()
        self._status = 0

    def run(self) -> int:
        """Until a signal comes, or a front end can't start at all; the exit status."""
        before = {number: signal.signal(number, self._on_signal) for number in ALL}
        try:
            while not self._stops:
                self._turn()
                time.sleep(POLL_S)
            self._stop_all()
        finally:
            self._board.close()
            for seat in self._seats:
                seat.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and not self._signals.hung_up():
            self._roll_over = True
            return
        self._stops += 1
        if self._stops > 1:  # the second asks for haste, the third does not ask
            self._send(signal.SIGINT if self._stops == 2 else signal.SIGKILL)
            if self._stops > 2:
                self._status = EXIT_INTERRUPTED

    def _turn(self) -> None:
        now_s = time.monotonic()
        for seat in [seat for seat, at_s in self._due.items() if at_s <= now_s]:
            del self._due[seat]
            self._fork(seat)
        self._board.exchange()
        self._end_hung()
        self._reap()
        self._hear()
        self._replace_next()
        self._park()
        self._write_siblings()

    def _park(self) -> None:
        """Give up the sockets of seats that nobody accepts at; the next front end there begins to listen anew."""
        now_s = time.monotonic()
        for child in self._children.values():
            if child.number in self._board.admin_urls:
                self._heard_s[child.seat] = now_s
                self._parked.discard(child.seat)
        taken = {child.seat for child in self._children.values()}
        for seat, heard_s in tuple(self._heard_s.items()):
            if seat in taken or now_s < heard_s + PARKED_AFTER_S:
                continue
            plane = self._trees[seat].control_plane
            self._seats[seat].close()
            try:
                self._seats[seat] = take_seat(plane.listen_host, plane.listen_port, plane.admin_host, plane.admin_port)
            except PointsmanError as error:
                _log.error("front end %d can't be started again: %s", seat + 1, error)
                self._due[seat] = now_s + MOST_PAUSE_S
                self._heard_s[seat] = now_s
                continue
            del self._heard_s[seat]
            if seat not in self._parked:
                self._parked.add(seat)
                _log.warning("front end %d is missing for %.0f s: clients go to others", seat + 1, PARKED_AFTER_S)

    def _end_hung(self) -> bool:
        """Kill front ends that stand still; whether there were any. They are started again like others that end."""
        now_s = time.monotonic()
        passed_s, self._watched_s = min(_MOST_TURN_S, now_s - self._watched_s), now_s
        killed = False
        for pid, child in self._children.items():
            if child.number in self._board.beating:
                if child.silent_s is not None and child.silent_s > SILENT_S:
                    _log.info("front end %d works again", child.seat + 1)
                child.silent_s = 0.0
            elif child.silent_s is not None:
                before_s, child.silent_s = child.silent_s, child.silent_s + passed_s
                if before_s <= SILENT_S < child.silent_s:
                    _log.warning("front end %d (process %d) stands still for %.0f s", child.seat + 1, pid, SILENT_S)
                if before_s <= HUNG_S < child.silent_s:
                    _log.error(
                        "front end %d (process %d) stood still for %.0f s and is killed", child.seat + 1, pid, HUNG_S
                    )
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    killed = True
        self._board.beating.clear()
        return killed

    # ---- replacing one by one

    def _hear(self) -> None:
        if self._board.reloaded:
            self._board.reloaded = False
            self._read_again("a front end read it")
        if self._board.roll_over:
            self._board.roll_over, self._roll_over = False, True
        if self._roll_over and not self._left and self._new() is None:
            self._roll_over = False
            before = self._trees
            if self._read_again("front ends are replaced one by one"):
                self._trees_before = before
                # What was changed by hand stays, unless the configuration changed the same.
                old, new = configured_orders(before[0]), configured_orders(self._trees[0])
                orders = self._board.orders.after(old, new)
                self._orders_due = None if orders == self._board.orders else orders
                self._left = list(range(len(self._seats)))

    def _read_again(self, why: str) -> bool:
        try:
            trees = self._reread()
        except PointsmanError as error:
            _log.error("the configuration was read again (%s) and is refused, nothing changes: %s", why, error)
            return False
        self._trees = trees
        _log.info("the configuration was read again: %s", why)
        return True

    def _replace_next(self) -> None:
        pid_and_new = self._new()
        if pid_and_new is not None:
            self._finish_replacing(*pid_and_new)
        elif self._left:
            old = sum(child.retiring for child in self._children.values())
            if old <= len(self._seats):
                self._said_waiting = False
                self._fork(self._left[0], new=True)
            elif not self._said_waiting:
                self._said_waiting = True
                _log.info("replacing front end %d waits for %d old ones to end their requests", self._left[0] + 1, old)

    def _finish_replacing(self, pid: int, new: _Child) -> None:
        if new.number in self._board.admin_urls:
            new.new = False
            self._due.pop(new.seat, None)
            for child in self._children.values():
                if child.seat == new.seat and child is not new and not child.retiring:
                    child.retiring = True
                    self._board.retire(child.number)
            self._left.remove(new.seat)
            if self._orders_due is not None:
                self._board.order(self._orders_due)
                self._orders_due = None
            _log.info("front end %d is replaced", new.seat + 1)
            if not self._left:
                self._trees_before = None
                _log.info("all front ends are replaced; the old ones end with their last requests")
        elif time.monotonic() > new.began_s + REPLACE_LIMIT_S:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._give_up_replacing(f"does not listen after {REPLACE_LIMIT_S:.0f} s")

    def _give_up_replacing(self, reason: str) -> None:
        if self._left:
            _log.error("replacing front end %d failed: it %s; the others go on as they are", self._left[0] + 1, reason)
        self._left, self._orders_due = [], None
        if self._trees_before is not None:
            self._trees, self._trees_before = self._trees_before, None
        taken = {child.seat for child in self._children.values() if not (child.retiring or child.new)}
        for seat in set(range(len(self._seats))) - taken:  # its old one ended meanwhile
            self._due.setdefault(seat, time.monotonic())

    def _new(self) -> tuple[int, _Child] | None:
        return next(((pid, child) for pid, child in self._children.items() if child.new), None)

    # ---- children

    def _fork(self, seat: int, *, new: bool = False) -> None:
        parent = os.getpid()
        orders = (self._orders_due if new else None) or self._board.orders
        tree = self._trees[seat]
        self._number += 1
        signal.pthread_sigmask(signal.SIG_BLOCK, ALL)
        try:
            with self._board.connect(self._number) as line:
                pid = os.fork()
                if pid == 0:
                    in_child(lambda: self._in_seat(seat, tree, line, orders), parent, ALL)
            self._children[pid] = _Child(self._number, seat, time.monotonic(), new=new)
            self._heard_s.setdefault(seat, time.monotonic())
        except OSError as error:  # no process or descriptor is left: that may pass, and those that run go on
            self._board.hang_up(self._number)
            _log.error("front end %d can't be started: %s", seat + 1, error.strerror)
            if new:
                self._give_up_replacing("can't be started")
            else:
                self._due[seat] = time.monotonic() + RESTART_PAUSE_S
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL)

    def _in_seat(self, seat: int, tree: ConfigTree, line: socket.socket, orders: Orders) -> int:
        """What a child does. It lets go of others' sockets: once those end, connections there would wait for ever."""
        self._board.close()
        for other, sockets in enumerate(self._seats):
            if other != seat:
                sockets.close()
        with line:
            return self._serve(seat, tree, self._seats[seat], line, orders)

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._children[pid]
                listened = child.number in self._board.admin_urls
                self._board.hang_up(child.number)
                self._ended(child, os.waitstatus_to_exitcode(status), listened=listened)

    def _ended(self, child: _Child, code: int, *, listened: bool) -> None:
        if child.retiring:
            if code:
                _log.warning("front end %d, which had been replaced, ended with status %d", child.seat + 1, code)
        elif child.new:
            self._give_up_replacing(f"ended with status {code}")
        elif code == EXIT_ERROR and not listened and self._first_try(child):
            # It has said why; another try would say the same.
            self._stops, self._status = 1, EXIT_ERROR
        elif (replaced_by := self._new()) is not None and replaced_by[1].seat == child.seat:
            _log.warning("front end %d ended with status %d while it was being replaced", child.seat + 1, code)
        else:
            _log.warning("front end %d ended with status %d; starting it again", child.seat + 1, code)
            self._due[child.seat] = time.monotonic() + self._pause_s(child)

    def _pause_s(self, child: _Child) -> float:
        if time.monotonic() - child.began_s > LIVED_S:
            self._short_lives[child.seat] = 0
            return 0.0
        self._short_lives[child.seat] += 1
        return min(MOST_PAUSE_S, RESTART_PAUSE_S * 2.0 ** min(10, self._short_lives[child.seat] - 1))

    def _first_try(self, child: _Child) -> bool:
        return child.number <= len(self._seats)

    def _write_siblings(self) -> None:
        seats = {child.number: child.seat for child in self._children.values()}
        urls = [url for _, url in sorted((seats.get(n, 0), url) for n, url in self._board.admin_urls.items())]
        # One that is being started again still counts: who asks for all must hear that one is missing.
        urls = list(dict.fromkeys(urls))
        if self._siblings is None or urls == self._written or len(urls) < len(self._seats):
            return
        self._written = urls
        try:
            self._siblings.write(urls)
        except OSError as error:
            _log.warning("`pointsman status` will show one of the front ends at a time: %s", error)

    # ---- the end

    def _stop_all(self) -> None:
        self._send(signal.SIGTERM)
        deadline_s = time.monotonic() + max(self._kill_after_s(tree) for tree in self._trees)
        while self._children:
            self._board.exchange()
            if self._end_hung():
                self._status = EXIT_ERROR
            for pid, child in list(self._children.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._children[pid]
                    self._close_seat(child.seat)
            if time.monotonic() > deadline_s:
                _log.warning("%d front ends did not stop in time and are killed", len(self._children))
                self._send(signal.SIGKILL)
                self._status = EXIT_ERROR
                deadline_s = float("inf")
            time.sleep(POLL_S)

    def _close_seat(self, seat: int) -> None:
        """Nobody accepts there any more: clients shall hear so, and be led to the others that still answer."""
        if all(child.seat != seat for child in self._children.values()):
            self._seats[seat].close()

    def _send(self, number: signal.Signals) -> None:
        for pid in tuple(self._children):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
