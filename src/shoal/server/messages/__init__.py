"""`/v1/messages`: Anthropic's Messages API on the conversation core."""
