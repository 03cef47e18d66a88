"""The paper, transcribed literally: columns are data, loops over particles, N x N inverses. Slow, and never optimised.

Notation of the paper: Phi (D, N), d (N,), particles theta (J, D) as rows. M_k is corrected (mu[R] inverted) unless
`printed=True`, which gives the formula as printed.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, softmax


def ensemble_statistics(theta):
    J = len(theta)
    m = sum(theta) / J
    P = sum(np.outer(t - m, t - m) for t in theta) / J
    return m, P


def averages(theta, Phi):
    J, N = len(theta), Phi.shape[1]
    y = [np.array([expit(t @ Phi[:, n]) for n in range(N)]) for t in theta]
    R = sum(np.diag(yj * (1 - yj)) for yj in y) / J
    return sum(y) / J, R


def tamed_step(theta, Phi, d, ds, *, printed=False, diagonal=False):
    """Eq. (hom_theta_stepping) with M_k of eq. (K)."""
    m, P = ensemble_statistics(theta)
    ybar, R = averages(theta, Phi)
    inner = ds * Phi.T @ P @ Phi + (R if printed else np.linalg.inv(R))
    M = np.diag(1 / np.diag(inner)) if diagonal else np.linalg.inv(inner)
    return np.array([t - ds / 2 * P @ Phi @ (M @ Phi.T @ (t - m) + 2 * (ybar - d)) for t in theta])


def prior_step(theta, m0, P0, ds):
    """Eq. (aldi_stepping)."""
    m, P = ensemble_statistics(theta)
    gain = P @ np.linalg.inv(ds * P + P0)
    return np.array([t - ds / 2 * gain @ (t + m - 2 * m0) + ds / 2 * (t - m) for t in theta])


def trotter_step(theta, Phi, d, m0, P0, ds, *, printed=False):
    """Algorithm 2, one step."""
    return prior_step(tamed_step(theta, Phi, d, ds, printed=printed), m0, P0, ds)


def stochastic_step(theta, Phi, d, m0, P0, ds, noise, *, correction):
    """Eq. (stochastic_second_order), both drifts tamed as above; P^{1/2} dW^j = J^{-1/2} Theta dW^j, dW^j in R^J."""
    J, D = theta.shape
    m, P = ensemble_statistics(theta)
    Theta = np.array([t - m for t in theta]).T
    ybar, R = averages(theta, Phi)
    M = np.linalg.inv(ds * Phi.T @ P @ Phi + np.linalg.inv(R))
    gain = P @ np.linalg.inv(ds * P + P0)
    moved = []
    for j, t in enumerate(theta):
        drift = -ds / 2 * P @ Phi @ (M @ Phi.T @ (t - m) + 2 * (ybar - d)) - ds / 2 * gain @ (t + m - 2 * m0)
        if correction:
            drift = drift + ds * (D + 1) / (2 * J) * (t - m)
        moved.append(t + drift + np.sqrt(ds / J) * Theta @ noise[j])
    return np.array(moved)


def softmax_derivatives(theta, Phi, labels, K):
    """mu[grad Psi] (DK,) and mu[Hess Psi] (DK, DK), dense, for theta = vec(W) with W (D, K) stored row by row."""
    D, N = Phi.shape
    gradient, hessian = np.zeros(D * K), np.zeros((D * K, D * K))
    for t in theta:
        for n in range(N):
            p = softmax(t.reshape(D, K).T @ Phi[:, n])
            gradient += np.kron(Phi[:, n], p - np.eye(K)[labels[n]]) / len(theta)
            hessian += np.kron(np.outer(Phi[:, n], Phi[:, n]), np.diag(p) - np.outer(p, p)) / len(theta)
    return gradient, hessian


def tamed_softmax_step(theta, Phi, labels, K, ds):
    """The tamed step in parameter space: Theta+ = (I + (I + ds P H)^{-1}) Theta / 2, m+ = m - ds P g."""
    m, P = ensemble_statistics(theta)
    g, H = softmax_derivatives(theta, Phi, labels, K)
    eye = np.eye(len(m))
    factor = (eye + np.linalg.inv(eye + ds * P @ H)) / 2
    return np.array([m - ds * P @ g + factor @ (t - m) for t in theta])


def etkf_step(theta, Phi, d, ds):
    """Exact flow with frozen R, dense: P+^{-1} = P^{-1} + ds H, m+ = m - ds P+ g; needs J > D."""
    m, P = ensemble_statistics(theta)
    ybar, R = averages(theta, Phi)
    new = np.linalg.inv(np.linalg.inv(P) + ds * Phi @ R @ Phi.T)
    return m - ds * new @ Phi @ (ybar - d), new


def unsplit_step(theta, Phi, d, m0, P0, tau):
    """Exact flow of Algorithm 2 with frozen H, dense: P+^{-1} = (1 - tau) P^{-1} + tau H, m+ = m - tau P+ g."""
    m, P = ensemble_statistics(theta)
    ybar, R = averages(theta, Phi)
    H = Phi @ R @ Phi.T + np.linalg.inv(P0)
    new = np.linalg.inv((1 - tau) * np.linalg.inv(P) + tau * H)
    return m - tau * new @ (Phi @ (ybar - d) + np.linalg.inv(P0) @ (m - m0)), new
