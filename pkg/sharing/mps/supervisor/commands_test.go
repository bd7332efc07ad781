package supervisor

import "testing"

func TestPercentages(t *testing.T) {
	for answer, right := range map[string]bool{"25.0": true, "25": true, " 25.0\n": true, "24.0": false, "": false, "Unknown command": false, "250": false} {
		if isPercentage(25)(answer) != right {
			t.Errorf("%q: %t", answer, !right)
		}
	}
}

// Sizes are compared whatever unit a daemon answers in.
func TestMemorySizes(t *testing.T) {
	for answer, right := range map[string]bool{
		"2048M": true, "2G": true, "2GB": true, "2147483648": true, "2097152K": true, "2048MB": true, "2.0 G": true,
		"1G": false, "2048": false, "2048K": false, "": false, "none": false, "2T": false,
	} {
		if isMemory(2048)(answer) != right {
			t.Errorf("%q: %t", answer, !right)
		}
	}
	if !isMemory(1536)("2G") {
		t.Error("a larger unit may round")
	}
}
