// Package linkcost says, for plans and demos, what it costs when all GPUs of a set talk to each other.
// It is an illustration, not a model: it knows NVLink domains and nothing else.
package linkcost

// What a unit of data costs between two GPUs: inside one NVLink domain, and between GPUs that
// share none and so go over PCIe or between sockets. The ratio is made up; real ones are larger.
const (
	Inside = 1
	Across = 4
)

// Sum is the cost when every GPU sends one unit to every other, as in an all-to-all: the sum over
// all pairs. domains has the NVLink domain of each GPU, empty for none: two GPUs without a domain
// share none.
func Sum(domains []string) int {
	sum := 0
	for i, a := range domains {
		for _, b := range domains[:i] {
			if a != "" && a == b {
				sum += Inside
			} else {
				sum += Across
			}
		}
	}
	return sum
}
