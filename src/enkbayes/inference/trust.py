"""The verdict on a posterior: did the run converge, do the particles span the directions that the data inform, and is
the true posterior close to the fitted Gaussian? `assess` measures the figures; `judge` turns them into words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from enkbayes.core.numerics import plain
from enkbayes.inference.prediction_verdict import PredictionVerdict
from enkbayes.inference.verdicts import BAD, GOOD, USABLE

UNCONVERGED = "the run has not converged"
MORE = "more data or a narrower prior help"
CONVERGED = 0.1  # largest residual of a run that counts as converged, in posterior standard deviations
CLOSE, FAR = 0.2, 0.5  # shift from which the Gaussian is usable only, and not to be trusted
HEAVY = 0.7  # k-hat above which averages of weights are not reliable (Vehtari and others)
EVEN = 0.5  # effective share above which k-hat is ignored, because it is a fit to noise
NORM = 0.02  # error of the mean square of the weights from which the Gaussian is usable only
NARROW = 0.76  # share of the posterior in an interval of 80 % below which the Gaussian is usable only
BENT = 0.3  # nonlinearity above which derivative-free slopes are suspect
SLOW, MOVING = 0.1, 0.3  # drift from which polished particles are usable only, and not to be trusted


@dataclass(frozen=True)
class Trust:
    """A verdict ("good", "usable", "do not trust"), the reason, what to do, and the figures behind them.

    residual : natural-gradient residual at the end of the run, NaN for homotopies
    k_hat, effective, draws : of the importance weights; without a Gaussian no draws, and both are NaN
    shift : distance from the Gaussian to the posterior, in posterior standard deviations per informed direction
    worst, parameter : the largest error of the mean of a parameter, in posterior standard deviations, and which has it
    variances : geometric mean of the ratios of the Gaussian's variances to the posterior's
    norm : error of the mean square of the weights, in posterior standard deviations of it
    coverage : share of the posterior in the Gaussian's central 80 % interval of the mean square of the weights
    informed : gamma, the number of directions that the data inform, among those that the particles span
    data_rank : rank of the data, the number of directions that the likelihood depends on; None for nonlinear logits
    spanned, particles, parameters : rank of the ensemble, J, and P
    nonlinearity : of nonlinear logits, see `Info`
    sweeps, drift : of `polish`, see `Info`
    converged : whether the run met its stopping rule
    predictions : whether the probabilities deserve their confidence, where that was judged
    held_out : whether held-out rows chose scale and spread of the weights, which then are those of no posterior

    Examples
    --------
    >>> import enkbayes as eb
    >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
    >>> trust = eb.assess(problem, eb.run(problem))
    >>> trust.verdict, trust.data_rank, trust.spanned, trust.particles, trust.parameters
    ('good', 1, 1, 200, 1)
    """

    verdict: str
    reason: str
    advice: str
    residual: float = math.nan
    k_hat: float = math.nan
    effective: float = math.nan
    draws: int = 0
    shift: float = math.nan
    informed: float = math.nan
    data_rank: int | None = None
    spanned: int = 0
    particles: int = 0
    parameters: int = 0
    nonlinearity: float | None = None
    sweeps: int = 0
    drift: float = math.nan
    converged: bool = True
    worst: float = math.nan
    parameter: int = 0
    variances: float = math.nan
    norm: float = math.nan
    coverage: float = math.nan
    predictions: PredictionVerdict | None = None
    held_out: bool = False

    def advised(self, words: Words) -> Trust:
        """Return the same with advice in other words: `PYTHON` or `COMMAND`.

        >>> import enkbayes as eb
        >>> problem = eb.Problem.create([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
        >>> trust = replace(eb.assess(problem, eb.run(problem)), shift=0.6)
        >>> trust.advised(COMMAND).advice.split(";")[0]
        '--sweeps 20 moves the particles there'
        """
        verdict, reason, advice = judge(self, words)
        return replace(self, verdict=verdict, reason=reason, advice=advice)

    @property
    def sentence(self) -> str:
        """Reason and advice."""
        return f"{self.reason}; {self.advice}" if self.advice else self.reason

    @property
    def effective_size(self) -> float:
        """The effective sample size of the weighted draws."""
        return self.effective * self.draws


def the_worst(parts: Sequence[Trust]) -> Trust:
    """Return the trust of the posterior that is to be trusted least, with the verdict on predictions of the one whose
    predictions deserve it least.

    >>> the_worst([Trust(GOOD, "a", ""), Trust(USABLE, "b", "")]).verdict
    'usable'
    """
    order = (GOOD, USABLE, BAD).index
    judged = [part.predictions for part in parts if part.predictions is not None]
    predictions = max(judged, key=lambda part: order(part.verdict), default=None)
    return replace(max(parts, key=lambda part: order(part.verdict)), predictions=predictions)


@dataclass(frozen=True)
class Words:
    """Advice in the words of those who read it: Python's, or those of the command."""

    steps: str = "raise max_steps, or use the mean-field sampler"
    particles: str = "use more than {parameters} particles, or the mean-field sampler"
    sampler: str = "use the mean-field sampler"
    polish: str = "polish({sweeps}) moves the particles there"
    again: str = "polish({sweeps}) once more"
    equilibrium: str = "use Equilibrium() or MeanField()"
    number: str = "pass a number as prior_precision"


PYTHON = Words()
COMMAND = Words(
    steps="raise --max-steps, or use --sampler mean-field",
    particles="use --particles with more than {parameters}, or --sampler mean-field",
    sampler="use --sampler mean-field",
    polish="--sweeps {sweeps} moves the particles there",
    again="use --sweeps {sweeps}",
    equilibrium="use --sampler equilibrium or mean-field",
    number="use --prior-precision with a number",
)


def judge(figures: Trust, words: Words = PYTHON) -> tuple[str, str, str]:
    """Return the verdict, its most serious reason, and what to do: the worst of what the figures say one by one.

    A posterior is not to be trusted if its run has not converged; if its figures are not finite; if the particles span
    fewer directions than the likelihood depends on, because the weights cannot move in the others; or if the Gaussian
    is as wrong as one whose mean is off by half a standard deviation, or the mean of a single parameter is off by that
    much. It is usable if these errors are .2 or more, or if heavy-tailed weights turn a smaller shift into a lower
    bound. So it is if the mean square of the weights is off by more than .02 of its standard deviation, or its 80 %
    interval holds less than 76 % of the posterior, which averages over many data sets can detect. Polished particles
    that have stopped climbing are good, whatever the Gaussian was.
    """
    if figures.held_out:
        return _of_held_out_rows(figures, words)
    found = [*_of_the_run(figures, words), *_of_the_weights(figures, words), *_of_the_span(figures, words)]
    polished = _of_the_polish(figures, words)
    found.append(_of_the_gaussian(figures, words) if polished is None else polished)
    return max(found, key=lambda finding: (BAD, USABLE, GOOD)[::-1].index(finding[0]))


Finding = tuple[str, str, str]


def _of_held_out_rows(figures: Trust, words: Words) -> Finding:
    """Return the finding on an average that held-out rows have scaled."""
    if not figures.converged:
        return BAD, UNCONVERGED, "scale the features"
    reason = "held-out rows chose the scale and the spread of the weights, so there is no posterior to compare with"
    return USABLE, reason, f"predictions are those that held-out rows prefer; for a posterior, {words.number}"


def _of_the_run(figures: Trust, words: Words) -> Iterator[Finding]:
    noisy = not figures.draws  # random particles have a residual even in equilibrium
    if not figures.converged or (figures.residual > CONVERGED and not noisy) or math.isinf(figures.residual):
        yield BAD, UNCONVERGED, words.steps


def _of_the_weights(figures: Trust, words: Words) -> Iterator[Finding]:
    weights = (figures.shift, figures.k_hat, figures.effective, figures.worst, figures.variances, figures.norm)
    if figures.draws and not all(map(math.isfinite, weights)):
        numbers = f"(shift {plain(figures.shift)} sd, k-hat {figures.k_hat:.2g})"
        yield BAD, f"the importance weights say that the Gaussian has no meaning {numbers}", words.sampler


def _of_the_span(figures: Trust, words: Words) -> Iterator[Finding]:
    if figures.spanned < figures.parameters:
        reach = figures.parameters if figures.data_rank is None else min(figures.data_rank, figures.parameters)
        covered = f"the particles span {figures.spanned} of {figures.parameters} parameters"
        seen = "" if figures.data_rank is None else f", and the likelihood depends on {reach} directions"
        advice = words.particles.format(parameters=figures.parameters)
        yield (BAD if figures.spanned < reach else USABLE), covered + seen, advice


def _of_the_polish(figures: Trust, words: Words) -> Finding | None:
    """Return the finding on polished particles; None if they are not polished, or still far from the end."""
    if not figures.sweeps or not figures.drift < MOVING:
        return None
    polished = f"{figures.sweeps} sweeps of polish have moved the particles to the true posterior"
    if figures.drift < SLOW:
        return GOOD, polished, ""
    return USABLE, f"{polished}, and they still climb", words.again.format(sweeps=2 * figures.sweeps)


def _of_the_gaussian(figures: Trust, words: Words) -> Finding:
    """Return the finding on the fitted Gaussian, from its importance weights."""
    if not figures.draws:
        return USABLE, "there is no fitted Gaussian to compare with the true posterior", words.sampler
    numbers = f"(shift {plain(figures.shift)} sd, k-hat {figures.k_hat:.2f})"
    advice = words.polish.format(sweeps=2 * figures.sweeps or 20)
    if (figures.nonlinearity or 0.0) > BENT:
        advice += ", and a Jacobian of the logits gives a better start"
    errors = _errors(figures)
    if math.isnan(figures.residual) and max(figures.shift, figures.worst) >= CLOSE:  # a homotopy ends with its path
        verdict = BAD if max(figures.shift, figures.worst) >= FAR else USABLE
        advice = f"the error is that of the method: {words.equilibrium}, or {advice}"
        return verdict, f"the path has ended away from the true posterior {numbers}{errors}", advice
    if figures.shift >= FAR or figures.worst >= FAR:
        return BAD, f"the true posterior is far from Gaussian {numbers}{errors}", f"{advice}; {MORE}"
    heavy = figures.k_hat >= HEAVY and figures.effective < EVEN
    if figures.shift >= CLOSE or figures.worst >= CLOSE or heavy:
        errors = errors or ", variances may be too small"
        return USABLE, f"the true posterior is not quite Gaussian {numbers}{errors}", advice
    square = _of_the_mean_square(figures)
    if square:
        return USABLE, f"{square} {numbers}{errors}", advice
    return GOOD, f"the run has converged and the true posterior is close to its Gaussian {numbers}", ""


def _of_the_mean_square(figures: Trust) -> str:
    """Return what is wrong with the mean square of the weights, or nothing."""
    if abs(figures.norm) >= NORM:
        return f"the mean square of the weights is off by {abs(figures.norm):.2f} sd"
    held = f"80 % intervals of the mean square of the weights hold {100 * figures.coverage:.0f} % of the posterior"
    return held if figures.coverage < NARROW else ""


def _errors(figures: Trust) -> str:
    """Return what the weighted moments say of mean and variances, where it is beyond their noise."""
    parts = []
    if figures.worst >= CLOSE / 2:
        parts.append(f"the mean of parameter {figures.parameter} is off by {figures.worst:.1f} sd")
    if figures.variances > 1.1:
        parts.append(f"variances are {100 * (figures.variances - 1):.0f} % too large")
    elif figures.variances < 0.9:
        parts.append(f"variances are {100 * (1 - figures.variances):.0f} % too small")
    return "".join(f", {part}" for part in parts)
