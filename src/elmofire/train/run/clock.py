"""When a line of the log, an evaluation, a checkpoint or the end of a run is due."""

import threading
import time

import torch

from elmofire.train.run.session import Session

EVALUATIONS = 10  # of a run, where the recipe does not say
_SILENCE = 2.0  # seconds, after which those who watch want to know that something moves


class Clock:
    """When what is due. Where only the clock decides, all ranks do what the first one says, at the lines of the log."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._spoken = time.monotonic()
        self._began = self._spoken - session.progress.seconds
        self._saved = self.seconds()
        self.evaluate_every = session.recipe.train.evaluate_every or (
            session.updates and max(1, -(-session.updates // EVALUATIONS))
        )
        self._ended = False
        self._minutes = session.progress.seconds / 60

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def minutes(self) -> float:
        """Of the run so far; where the rate does not depend on them, nobody is asked."""
        session = self._session
        if session.recipe.train.minutes is None or session.updates is not None:
            return 0.0
        if session.ranks.world == 1 or self.line_is_due():
            self._minutes = session.ranks.agree(self.seconds() / 60)
        return self._minutes

    def line_is_due(self) -> bool:
        return self._session.progress.update % self._session.recipe.train.log_every == 0

    def silence_is_long(self) -> bool:
        """Since a line was due, or this was last so."""
        now = time.monotonic()
        long = not self.line_is_due() and now - self._spoken >= _SILENCE
        if long or self.line_is_due():
            self._spoken = now
        return long

    def over(self) -> bool:
        session = self._session
        if session.updates is not None and session.progress.update >= session.updates:
            return True
        if session.recipe.train.minutes is not None and not self._ended:
            self._ended = self._agreed(self.seconds() >= 60 * session.recipe.train.minutes)
        return self._ended

    def evaluation_is_due(self) -> bool:
        session = self._session
        if self.evaluate_every:
            return session.progress.update % self.evaluate_every == 0
        share = self.seconds() / (60 * (session.recipe.train.minutes or 1))
        return self._agreed(share * EVALUATIONS >= session.progress.evaluations + 1)

    def checkpoint_is_due(self) -> bool:
        session = self._session
        every = session.recipe.train.checkpoint_every
        late = self._agreed(self.seconds() - self._saved >= 60 * session.recipe.train.checkpoint_minutes)
        due = late or bool(every and session.progress.update % every == 0)
        if due:
            self._saved = self.seconds()
        return due

    def stopped(self, asked: threading.Event) -> bool:
        """Whether any rank was asked to end: all must know, since it takes all of them to save."""
        ranks = self._session.ranks
        if ranks.world == 1 or not self.line_is_due():
            return ranks.world == 1 and asked.is_set()
        return bool(ranks.sum(torch.tensor(float(asked.is_set()), device=ranks.device)))

    def _agreed(self, wanted: object) -> bool:
        ranks = self._session.ranks
        if ranks.world == 1:
            return bool(wanted)
        return bool(ranks.agree(wanted)) if self.line_is_due() else False
