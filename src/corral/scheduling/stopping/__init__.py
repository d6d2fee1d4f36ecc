"""Who may be stopped for whom, who has to be, and room that is kept for the claimant."""
