"""Pictures of attention: its tiles, its steps, its bytes and its gradients."""
