"""The flow of tuning one program that was captured, stage by stage: under one launch, or under several that race together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.far_behind import left_behind
from fuseplan.tuning.effort import FOLLOWING_BLOCKS, FULL, QUICK, Effort
from fuseplan.tuning.program.baseline import default_us, planned, searches
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.carve import Carver, carving_knowledge
from fuseplan.tuning.program.check_plans import TimedChecks
from fuseplan.tuning.program.evidence import add_profile, evidence_of, keep_regions
from fuseplan.tuning.program.launches import keep_launches, left_out, shared_out, why_not, with_room
from fuseplan.tuning.program.measure import Measuring
from fuseplan.tuning.program.moves import moves_of
from fuseplan.tuning.program.profile import Look
from fuseplan.tuning.program.race import Verdict, among, decided, left_by, race
from fuseplan.tuning.program.result import Tuned, keep, keep_failure, keep_prediction
from fuseplan.tuning.program.rounds import Proposed
from fuseplan.tuning.program.search import LaunchSearch
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import Rows, differ_in_launch


@dataclass
class Stages:
    """The stages of tuning one program, and what they are given."""

    services: Services
    budget: Budget
    searches: Sequence[LaunchSearch]
    """One for each launch that is to race, the one that ties go to first."""

    @property
    def effort(self) -> Effort:
        """How much may be spent."""
        return self.budget.effort

    def tuned(self, trace: Trace) -> Tuned:
        """The verdict on the program."""
        if not self.effort.measures:
            return self._predicted(self.searches[0])
        if not self.effort.cuts:
            return self._of_whole_plans(trace)
        known_us = [default_us(self.services, search.knowledge) for search in self.searches]
        for search, us in zip(self.searches, known_us, strict=True):
            search.knowledge.default_takes(us)
        step_us = min((us for us in known_us if us is not None), default=None)
        known = [search.knowledge for search in self.searches]
        look = Look(self.services, self.budget, trace.to_json(), known)
        trains = self.searches[0].problem.trains
        drops = self.effort.name != FULL.name and not self.searches[0].objective.spares
        checks = TimedChecks(self.services, self.budget, trace.to_json(), step_us, look=look, apart=trains, drops=drops)
        worth = {search.launch: search.worth_trying() for search in self.searches}
        waiting = self._waiting(worth)
        every = [entry for entries in worth.values() for entry in entries if entry not in waiting]
        late = [entry for entry in every if searches(entry)]  # they would take the time to measure
        self.searches[-1].rounds.begin()
        checks.checked([entry for entry in every if entry not in late])
        able, reasons = self._able(checks, waiting)
        leading = self._leading(able)
        if trains:
            checks.keep_room()
            self._carved(checks, leading)
        # What is cut up gives up what Inductor fuses across the cuts: in training that has cost 6 to 10 %.
        cuts = not trains or self.searches[0].knowledge.profile is None
        # The last pays nothing for the host, so that it looks first for what is fastest on the device: that serves the others.
        # Who has no time left for a plan of its own need not look for one: in training that takes seconds.
        proposed = {
            search.launch: search.rounds.run(self._uncut_us(search, checks))
            if cuts and checks.keep_room()
            else search.rounds.leave()
            for search in reversed(leading)
        }
        self._check_cuts(leading, checks, proposed, [entry for search in leading for entry in search.entries.of(late)])
        if not trains and checks.keep_room():
            self._carved(checks, leading)
        self._check_waiting(able, checks, waiting)
        verdict, racing = self._judged(able, checks, proposed, checks.fit)
        tuned = self._settled(able, checks, proposed, racing, verdict)
        return replace(tuned, detail=tuned.detail or left_out(reasons))

    def _of_whole_plans(self, trace: Trace) -> Tuned:
        """The verdict where nothing is cut: the defaults, and what is preferred of rewrites, under CUDA graphs where these suit the
        program and plain where they don't.
        """
        # Seconds count here: no default waits for what another leaves in torch's caches, and one that loses is not judged.
        checks = TimedChecks(self.services, self.budget, trace.to_json(), apart=True, defers=True)
        worth = {search.launch: search.worth_trying() for search in self.searches}
        waiting = self._waiting(worth)
        checks.checked([entry for entries in worth.values() for entry in entries if entry not in waiting])
        able, reasons = self._able(checks, waiting)
        self._check_waiting(able, checks, waiting)
        verdict, racing = self._judged(able, checks, {}, checks.fit)
        if verdict is not None:
            self.services.expects(planned(verdict.winner))
        if verdict is not None and (wrong := self._taken_for_right(checks, verdict)):
            self.services.note(f"{wrong} was taken for right, and is not: the others race once more")
            checks.judge_all()
            able, reasons = self._able(checks, waiting)
            verdict, racing = self._judged(able, checks, {}, checks.fit)
        tuned = self._settled(able, checks, {}, racing, verdict)
        return replace(tuned, detail=tuned.detail or left_out(reasons))

    def _taken_for_right(self, checks: TimedChecks, verdict: Verdict) -> str:
        """Which of a verdict's plans is wrong after all, if one is: the winner is judged now where that was put off."""
        checks.is_right(verdict.winner)
        return next(
            (one.name for one in (verdict.winner, verdict.best_default) if checks.rows[one.name].status != "ok"), ""
        )

    @property
    def _follows(self) -> bool:
        """Whether one launch leads: what is tried under it follows under others where these may be faster, since a plan that wins under one
        hardly ever loses under another. Memory is another matter, and `full` tries all.
        """
        return len(self.searches) > 1 and self.effort.name != FULL.name and not self.searches[0].objective.spares

    def _leading(self, able: Sequence[LaunchSearch]) -> Sequence[LaunchSearch]:
        """Those under which plans are tried: of several that are `able` the last, where one leads."""
        return able[-1:] if self._follows else able

    def _tried(self, able: Sequence[LaunchSearch], rows: Rows) -> list[LaunchSearch]:
        """Those under which plans that are no default were tried; where none has a time, those under which nothing waits."""
        if not self._follows:
            return list(able)
        found = [search for search in able if search.best_rival(rows) is not None]
        return found or [search for search in able if all(one.name in rows for one in search.entries.raced)]

    def _waiting(self, worth: Mapping[str, Sequence[RaceEntry]]) -> list[RaceEntry]:
        """Of what is `worth` trying under each launch that does not lead, what waits for the race: all but torch's defaults, and what somebody
        offers.
        """
        following = self.searches[:-1] if self._follows else ()
        entries = [entry for search in following for entry in worth[search.launch] if planned(entry).launch == "plain"]
        return [one for one in entries if not one.offered and (not one.default or planned(one).host == "aten")]

    def _check_waiting(self, able: Sequence[LaunchSearch], checks: TimedChecks, waiting: Sequence[RaceEntry]) -> None:
        """Check what waits where nothing that was tried is right under the launch that leads: there is nothing to follow then.
        What hangs there is not tried again.
        """
        rivals = [one.name for one in able[-1].entries.raced if not one.default]
        found = {checks.rows[name].status for name in rivals if name in checks.rows}
        if len(able) > 1 and found and not found & {"ok", "timeout"}:
            checks.checked([one for one in waiting if one.name not in checks.rows])

    def _able(self, checks: TimedChecks, plain: Sequence[RaceEntry]) -> tuple[Sequence[LaunchSearch], dict[str, str]]:
        """The searches whose launch suits the program, as far as its defaults have shown it, or all; and why others are left out, in whose
        place what is `plain` is checked.
        """
        if not any(entry.default for entry in checks.fit):
            checks.checked(self.searches[0].eager() or checks.crowded_out)
        fit, rows, here = checks.fit, checks.rows, self.services.environment
        reasons = {search.launch: why_not(search, fit, rows, here) for search in self.searches}
        able = [search for search in self.searches if not reasons[search.launch]]
        if len(able) < len(self.searches) and (left := [one for one in plain if one.name not in rows]):
            checks.checked(left)
            return self._able(checks, ())
        return able or self.searches, reasons

    def _uncut_us(self, search: LaunchSearch, checks: TimedChecks) -> float:
        """What a step takes under the best of what is not cut, where that is known before a race: what its kernels take, if nothing waits
        for the host.
        """
        assert checks.look is not None
        captured = search.launch != "plain" and not search.problem.trains and self.effort.name != FULL.name
        looked = checks.look.now(checks.fit, checks.rows) if captured else None
        return math.inf if looked is None else looked.profile.device_us

    def _carved(self, checks: TimedChecks, leading: Sequence[LaunchSearch]) -> None:
        """Check plans with carve-outs from what torch.compile makes of the program."""
        assert checks.look is not None
        looked = checks.look.now(checks.fit, checks.rows)
        if looked is None:
            return
        self.searches[-1].rounds.wait()
        knowledge = carving_knowledge(
            self.searches[0].knowledge, looked.profile, self.effort, self.services.environment.device
        )
        carver = Carver(knowledge, looked.profile, looked.machine)
        if not carver.is_worth_it:
            share = carver.closable_us / looked.profile.device_us
            self.services.note(f"nothing is carved out: what others could do better is {share:.1%} of a step at most")
            return
        carver.measure(Measuring(self.services, self.budget, knowledge))
        for search in self.searches:
            search.knowledge.carves(carver.knowledge)
        checks.checked([one for search in leading for one in search.carved(carver, looked.plan)])

    def _check_cuts(
        self,
        leading: Sequence[LaunchSearch],
        checks: TimedChecks,
        proposed: Mapping[str, Proposed],
        late: Sequence[RaceEntry],
    ) -> None:
        """Check the candidates that were cut, and the named plans that were to come `late`."""
        worth = {search.launch: search.differing(proposed[search.launch]) for search in leading}
        races = shared_out(worth, {launch: one.races for launch, one in proposed.items()})
        cut = [entry for search in leading for entry in search.cuts(races[search.launch], worth[search.launch])]
        if not cut and not any(one.races or one.behind for one in proposed.values()):
            self.services.note("no cut is tried, on the same layers all were far behind")
        if len(leading) > 1:
            cut.sort(key=lambda entry: math.inf if entry.predicted_us is None else entry.predicted_us)
        checks.checked([*cut, *late])
        for search in leading:  # a plan that is nearly the one that failed may not fail
            failed = [
                one
                for one in search.entries.of(cut)
                if one.name in checks.rows and checks.rows[one.name].status != "ok"
            ]
            if failed:
                others = search.cuts(len(failed), proposed[search.launch].candidates)
                checks.checked([one for one in others if one.name not in checks.rows])

    def _judged(
        self,
        able: Sequence[LaunchSearch],
        checks: TimedChecks,
        proposed: Mapping[str, Proposed],
        fit: Sequence[RaceEntry],
    ) -> tuple[Verdict | None, list[RaceEntry]]:
        """The verdict on those that are `fit`, and what raced: all those of one launch before those of the next."""
        rows = checks.rows
        fit = self._near(with_room(fit, rows, self.services.environment, able), checks)
        racing = [entry for search in able for entry in search.entries.of(fit)]
        if (likely := _likely(racing)) is not None:
            self.services.expects(planned(likely))
        # layers on which nothing was left to find out have had a race that was as long as it takes
        recalled = all(one.recalled for one in proposed.values())
        most = min(self.effort.plan_blocks, QUICK.plan_blocks) if recalled else self.effort.plan_blocks
        objective = self.searches[0].objective
        verdict = race(self.services, checks.trace, racing, rows, most, self.budget, objective)
        if verdict is not None:
            first = verdict
            verdict, joined = self._joined(able, checks, decided(verdict, objective, racing), most)
            verdict = decided(verdict, objective, [*racing, *joined])
            verdict, followed = self._followed(able, checks, first, verdict, most)
            racing += followed
        return verdict, racing

    def _near(self, fit: Sequence[RaceEntry], checks: TimedChecks) -> list[RaceEntry]:
        """Those of what is `fit` that are not so far behind that nobody compiles them for their race."""
        behind = left_behind(fit, checks.rows) if checks.drops else {}
        for one, best in behind.items():
            took, least = (f"{checks.rows[each.name].call_us:,.1f} µs" for each in (one, best))
            told = f"its calls took {took}, and those of {best.name} {least}"
            self.services.note(f"{one.name} does not race: {told}")
            checks.hear({one.name: replace(checks.rows[one.name], detail=f"it did not race: {told}")})
        return [one for one in fit if one not in behind]

    def _settled(
        self,
        able: Sequence[LaunchSearch],
        checks: TimedChecks,
        proposed: Mapping[str, Proposed],
        racing: Sequence[RaceEntry],
        verdict: Verdict | None,
    ) -> Tuned:
        """The verdict on what raced, kept in the database and told to who learns from it."""
        services, rows = self.services, checks.rows
        verdict = None if verdict is None else replace(verdict, left=checks.left)
        for search in self.searches:
            search.tell(rows, None if verdict is None else verdict.result.noise)
        first = self.searches[0]
        if verdict is None:
            entries = first.entries.own
            why = "no default of this launch runs here" if len(self.searches) == 1 else "no default runs here"
            return keep_failure(services, first.problem.program, why, entries, first.entries.own_rows(rows))
        best = [candidate.plan for one in proposed.values() for candidate in one.candidates[:1]]
        keep_regions(services, first.knowledge, [*(planned(entry) for entry in racing), *best])
        if len(self.searches) == 1:
            kept = self._kept(first, verdict)
        else:
            kept = keep_launches(services, self.searches, able, self._tried(able, rows), verdict)
        if self.effort.profiles:
            self._profile_default(checks, racing)
        return kept

    def _profile_default(self, checks: TimedChecks, fit: Sequence[RaceEntry]) -> None:
        """Note where the time of the default goes beside the plans that were just kept: who interrupts that loses no verdict."""
        before = None if checks.look is None else checks.look.looked
        if before is not None and not before.plan.rewrites:
            return
        known = [search.knowledge for search in self.searches]
        look = Look(self.services, self.budget, checks.trace, known, of_default=True)
        if look.now(fit, checks.rows) is not None:
            add_profile(self.services, known[0])

    def _joined(
        self, able: Sequence[LaunchSearch], checks: TimedChecks, verdict: Verdict, most: int
    ) -> tuple[Verdict, list[RaceEntry]]:
        """The verdict, where several ways to write something have won each by itself, with their plan raced against it; and that plan,
        if it raced.
        """
        winning = next(search for search in able if verdict.winner.name in search.entries)
        objective = winning.objective
        if objective.least != "time":
            return verdict, []
        fit = checks.checked(winning.joined(verdict.result))
        return self._raced_again(able, checks, verdict, fit, most)

    def _followed(
        self, able: Sequence[LaunchSearch], checks: TimedChecks, first: Verdict, verdict: Verdict, most: int
    ) -> tuple[Verdict, list[RaceEntry]]:
        """The verdict, where the best plan of the launch that leads has raced under each other launch that may be faster, by the `first` race
        of all defaults; and these plans.
        """
        own = self._best_of(able[-1], verdict) if self._follows else None
        if own is None:
            return verdict, []
        fit = checks.checked([
            one for search in able[:-1] if self._may_win(search, able[-1], first)
            for one in search.following(own) if one.name not in checks.rows
        ])  # fmt: skip
        return self._raced_again(able, checks, verdict, fit, min(most, FOLLOWING_BLOCKS), follows=True)

    def _best_of(self, leading: LaunchSearch, verdict: Verdict) -> RaceEntry | None:
        """What has won of a launch, by its own name; where that is a default, or nothing was in the race for long enough, the fastest of the
        rest.
        """
        found = among(verdict, leading.entries.raced)
        if found is not None and not found.winner.default:
            return leading.entries.own_of(found.winner.name)
        return leading.best_rival(verdict.rows)

    def _may_win(self, search: LaunchSearch, leading: LaunchSearch, first: Verdict) -> bool:
        """Whether plans may be faster under a launch than under the one that leads: the same default is no slower there, as far as is
        known. Where seconds count, it has to be faster.
        """
        defaults, others = ([one for one in its.entries.raced if one.default] for its in (search, leading))
        pairs = [(one, other) for one in defaults for other in others if differ_in_launch(planned(one), planned(other))]
        found = next((how for pair in pairs if (how := first.compared(*pair)) != "unknown"), "unknown")
        return found != "slower" if self.effort.cuts else found == "faster"

    def _raced_again(
        self, able: Sequence[LaunchSearch], checks: TimedChecks, verdict: Verdict, fit: Sequence[RaceEntry], most: int,
        *, follows: bool = False,
    ) -> tuple[Verdict, list[RaceEntry]]:  # fmt: skip
        """The verdict, where what is `fit` has raced against the best of each launch and its default; and what of it raced. What `follows` may
        be the best of its launch, though it wins nothing.
        """
        objective = self.searches[0].objective
        ways = {search.launch: search.entries.raced for search in able}
        best = [decided(found, objective, own) for own in ways.values() if (found := among(verdict, own)) is not None]
        racing = {entry.name: entry for found in best for entry in (found.best_default, found.winner)}
        left = left_by(objective, [*racing.values(), *fit], checks.rows)
        fit = [entry for entry in fit if entry in left]
        if not fit:
            return verdict, []
        rows = dict(checks.rows)
        entries = [entry for search in able for entry in search.entries.of([*racing.values(), *fit])]
        again = race(self.services, checks.trace, entries, rows, most, self.budget, objective)
        again = again and decided(again, objective, entries)
        if again is None or not (again.winner in fit or (follows and again.winner == verdict.winner)):
            checks.hear({entry.name: rows[entry.name] for entry in fit})
            return verdict, fit
        checks.hear(rows)
        return replace(again, rows=checks.rows), fit

    def _kept(self, search: LaunchSearch, verdict: Verdict) -> Tuned:
        """The verdict on the only launch, which is kept."""
        winner = planned(verdict.winner)
        evidence = evidence_of(search.knowledge, winner)
        moves = moves_of(search.knowledge, winner)
        return keep(self.services, search.problem.program, verdict, search.entries.own, moves, evidence)

    def _predicted(self, search: LaunchSearch) -> Tuned:
        """The best plan that nobody has raced."""
        knowledge, program = search.knowledge, search.problem.program
        candidates = search.rounds.run().candidates
        if not candidates:
            uncut = search.problem.found.uncut
            detail = f"no graph of it can be cut{uncut and f': {uncut}'}"
            return Tuned(program.key, program.name, program.launch, "failed", detail=detail)
        plan = candidates[0].plan
        evidence = evidence_of(knowledge, plan)
        predicted_us = knowledge.predict([one.segmentation for one in plan.carve_outs])
        return keep_prediction(self.services, program, plan, predicted_us, moves_of(knowledge, plan), evidence)


def _likely(racing: Sequence[RaceEntry]) -> RaceEntry | None:
    """What may well win a race: the first that is no default; else Inductor under CUDA graphs, or as it is where these do not suit."""
    rivals = [entry for entry in racing if not entry.default]
    captured = [entry for entry in racing if planned(entry).launch != "plain"]
    return next(iter([*rivals, *captured, *racing]), None)
