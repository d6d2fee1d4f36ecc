"""Devices a node offers, behind one port (agent.ports.Devices)."""
