"""Reading evidence: what a profiler's trace says about where time goes. Pure functions of the files it is given."""
