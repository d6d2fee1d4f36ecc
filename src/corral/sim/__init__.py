"""The scheduler in virtual time: a trace and a simulated fleet in, what became of everybody out. Reads files, starts
nothing, asks no clock."""
