"""Who runs where: a frozen snapshot and the time in, a plan out. Pure; a pass keeps nothing for the next one.

Where to read on: `snapshot` (what a pass sees), `cycle` (its eight steps), `plan` (what it decided, and the check that
holds it to the rules of room). `ordering`, `limits`, `fleet` and `policies` are what each session passes; `ahead`
those in front and the room to come, `stopping` preemption, `moving` defragmenting, `explaining` why not and when,
`claiming` orders that stop those who run, `kept` what spares a manager reading everything anew, `engine` the arrays
below all of them.
"""
