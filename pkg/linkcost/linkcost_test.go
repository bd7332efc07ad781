package linkcost

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func ExampleSum() {
	fmt.Println(Sum([]string{"a", "a", "b", "b"}), Sum([]string{"b", "b", "b", "b"}))
	// Output: 18 6
}

func TestSum(t *testing.T) {
	for want, domains := range map[int][]string{
		0:      nil,
		Across: {"", ""},
		Inside: {"a", "a"},
		9:      {"a", "b", "a"},
	} {
		if got := Sum(domains); got != want {
			t.Errorf("%q cost %d, want %d", domains, got, want)
		}
	}
}

// The order of the GPUs does not matter, and one domain is the cheapest there is.
func TestSumProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		domains := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c"}), 0, 9).Draw(t, "domains")
		shuffled := rapid.Permutation(domains).Draw(t, "shuffled")
		if Sum(domains) != Sum(shuffled) {
			t.Errorf("%q cost %d, %q cost %d", domains, Sum(domains), shuffled, Sum(shuffled))
		}
		pairs := len(domains) * (len(domains) - 1) / 2
		if sum := Sum(domains); sum < pairs*Inside || sum > pairs*Across {
			t.Errorf("%d pairs cost %d", pairs, sum)
		}
	})
}
