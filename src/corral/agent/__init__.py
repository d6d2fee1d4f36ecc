"""The node: desired state in, process trees and facts out."""
