"""The choices a resource group makes: in which order sessions are tried, and which of the fitting nodes is best."""
