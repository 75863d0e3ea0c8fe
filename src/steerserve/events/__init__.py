"""The live events over Socket.IO."""
