"""The Space "Evidence gates": look at attention and permission, close gates, see what changes."""
