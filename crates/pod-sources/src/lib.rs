//! Files, URLs and the API server become one stream of typed pod changes.
