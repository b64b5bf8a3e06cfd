"""What other people's training loops need, switched on by hand: importing this room changes nothing."""
