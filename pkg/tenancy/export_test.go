package tenancy

// Remembered is how many claims are remembered.
func (r *Register) Remembered() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}
