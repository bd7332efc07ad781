package shares

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// Withheld says why, on a node that cuts its GPUs, devices must not be offered in shares to a
// cluster of that release; "" where they may be. Up to 1.36 the scheduler does not count what
// shared devices consume of a GPU's counters, so it would give out partitions that exclude each
// other. A release that is not known (nil) may be one of those.
func Withheld(release *version.Version) string {
	const needs = "shares of devices that exclude others, as with on-demand partitions, need Kubernetes 1.37"
	switch {
	case release == nil:
		return needs + ", and the API server's release is not known yet"
	case release.LessThan(version.MajorMinor(1, 37)):
		return fmt.Sprintf("%s (this is %s): earlier schedulers give out twice what cannot be there at once; update the cluster, or choose partitions or shares", needs, release)
	default:
		return ""
	}
}
