package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
)

const (
	// islandSize is how many GPUs the main job needs in one NVLink domain.
	islandSize = 4
	// pairSize is how many GPUs are taken before it.
	pairSize = 2
)

// errNoRoom is no fault of the cluster: its logs do not help.
var errNoRoom = errors.New("no room")

// held returns the published GPUs and who holds them.
func (d *demo) held(ctx context.Context) ([]rig.GPU, map[string]string, error) {
	gpus, err := rig.GPUs(ctx, d.client)
	if err != nil {
		return nil, nil, err
	}
	claims, err := d.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list claims: %w", err)
	}
	return gpus, holders(claims.Items, gpus), nil
}

// holders names, by the UUIDs of GPUs, the pods of all namespaces that hold them, as
// NAMESPACE/NAME; a claim that no pod uses now holds its GPUs itself. Who only looks at a GPU, by
// admin access, does not hold it.
func holders(claims []resourceapi.ResourceClaim, gpus []rig.GPU) map[string]string {
	uuids := map[[2]string]string{}
	for _, g := range gpus {
		uuids[[2]string{g.Node, g.Device}] = g.UUID
	}
	held := map[string]string{}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		var users []string
		for _, user := range claim.Status.ReservedFor {
			users = append(users, claim.Namespace+"/"+user.Name)
		}
		if len(users) == 0 {
			users = []string{"claim " + claim.Namespace + "/" + claim.Name}
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			uuid, known := uuids[[2]string{result.Pool, result.Device}]
			looks := result.AdminAccess != nil && *result.AdminAccess
			if result.Driver == rig.Driver && known && !looks {
				held[uuid] = strings.Join(users, ",")
			}
		}
	}
	return held
}

// room fails when the pods of others leave no place for the demonstration. Those of a former run
// do not count: they are ended before this one.
func (d *demo) room(ctx context.Context) error {
	gpus, held, err := d.held(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(held, func(_, holder string) bool { return strings.HasPrefix(holder, namespace+"/") })
	if roomFor(gpus, held) {
		return nil
	}
	return fmt.Errorf("%w: pods of yours hold %d GPUs (%s); the demo needs %d GPUs and a free island of %d besides. Delete them, or run make demo-cluster-down",
		errNoRoom, len(held), strings.Join(slices.Compact(slices.Sorted(maps.Values(held))), ", "), pairSize, islandSize)
}

// roomFor says whether an island stays free when the first free GPUs, in the published order,
// are taken: that is how the scheduler takes them. GPUs that are not published yet are free.
func roomFor(gpus []rig.GPU, held map[string]string) bool {
	free := slices.DeleteFunc(slices.Clone(gpus), func(g rig.GPU) bool { return held[g.UUID] != "" })
	if len(free) == len(gpus) {
		return true
	}
	island := map[string]int{}
	for _, g := range free[min(pairSize, len(free)):] {
		if g.Domain != "" {
			island[g.Domain]++
		}
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(island)), func(n int) bool { return n >= islandSize })
}

// state says how far a pod is, and why it has no node where it has none.
func state(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue && c.Message != "" {
			return string(pod.Status.Phase) + ": " + c.Message
		}
	}
	return string(pod.Status.Phase)
}

// imageValues make an upgrade replace the plugin when the image is another one: its tag is
// always the same.
func imageValues(archive string) (rig.Values, error) {
	image, err := os.ReadFile(archive)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	return rig.Values{"kubeletPlugin.podAnnotations.demo-image": fmt.Sprintf("sha256-%x", sha256.Sum256(image))}, nil
}
