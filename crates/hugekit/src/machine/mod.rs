//! What this machine is: caches, nodes, CPUs, limits, huge-page pools, kernel features.
