"""What dphead must withstand, a probe a module: `kills`, `damage`, `limits`, `hostile`.
Each yields, a try at a time, what broke; `benchmarks.experiments.faults` counts it.
"""
