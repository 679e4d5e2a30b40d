//! Image presence: policies, pulls in series or parallel, rate limits, back-off.
