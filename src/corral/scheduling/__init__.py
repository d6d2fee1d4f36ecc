"""Who runs where: a frozen snapshot and the time in, a plan out. Pure; a pass keeps nothing for the next one."""
