//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-dra/driver/test/e2e/rig"
	"github.com/gpu-dra/driver/test/gpusim"
)

// downAndUp has pods of several kinds run while the driver goes to an older release and back. The
// records that the older one finds are of a newer one than the test's, which knows more of claims:
// it must keep what it does not understand, and lose nothing.
func downAndUp(s *scene) {
	archive, err := s.BuildImage(s.Context(), olderVersion)
	s.must(err)
	s.must(s.ClusterCommand(s.Context(), "load", archive))
	pods := []*corev1.Pod{}
	whole, _ := s.start("two", hopper, request{count: 2, cel: is("uuid", s.gpu(hopper, 0), s.gpu(hopper, 1))})
	s.create(computing("slices", hopper, s.gpu(hopper, 2), `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
		"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`))
	s.cut("part", hopper, true, ask("a", partClass, 2, is("profile", "1g.10gb"), is("parentUUID", s.gpu(hopper, 3))))
	s.create(computing("mps", hopper, s.gpu(hopper, 5), byMPSWith(25, "1Gi")))
	pods = append(pods, whole, s.running("slices")[0], s.running("part")[0], s.running("mps")[0])
	const kinds = 4
	s.writtenByALaterRelease(kinds)

	s.changes(olderVersion)
	s.serves(olderVersion)
	s.start("while-older", hopper, request{cel: is("uuid", s.gpu(hopper, 4))})
	s.remove("while-older")
	s.changes(version)
	s.serves(version)
	s.noFailedPrepare()
	for series, n := range s.failures() {
		s.Errorf("%s = %v", series, n)
	}
	for _, before := range pods {
		after := s.running(before.Name)[0]
		if after.UID != before.UID || containerID(after) != containerID(before) {
			s.Errorf("pod %s was started again", before.Name)
		}
	}
	s.holds(whole, 2)
	s.seesParts(pods[2])
	s.shares(hopper, 2, gpusim.Sharing{TimeSlice: gpusim.TimeSliceLong})
	s.tries("mps", 1000, "thread_percentage=25.0", "pinned_limit=1024", "total=1000")
	s.tries("mps", 1025, "CUDA_ERROR_OUT_OF_MEMORY")
	s.keepsWhatIsLater(kinds)
	s.ended(hopper, "two", "slices", "part", "mps")
	s.shares(hopper, 2, gpusim.Sharing{})
	s.shares(hopper, 5, gpusim.Sharing{})
	s.leaves(hopper, 3, false)
}

// changes has every plugin be of another version, while the pods of MPS control daemons stay as they are.
func (s *scene) changes(version string) {
	s.Helper()
	s.must(s.Change(s.Context(), version, cutValues()))
	s.must(rig.Wait(s.Context(), retryLimit, "every plugin is of version "+version, func(ctx context.Context) (string, error) {
		set, err := s.daemonSet(ctx)
		if err != nil {
			return "", err
		}
		return rig.RolledOut(set, len(s.Presets)), nil
	}))
}

// recordFiles are the records of a node, of which there must be n.
func (s *scene) recordFiles(node, n int) []string {
	s.Helper()
	var files []string
	for _, name := range s.records(node) {
		files = append(files, filepath.Join(s.dataDir(node), "claims", name))
	}
	if len(files) != n {
		s.Fatalf("there are %d records, not %d: %q", len(files), n, files)
	}
	return files
}

// later is a member that no release has so far.
const later = "e2eOfALaterRelease"

// writtenByALaterRelease puts into each record, and into its devices and steps, what this release
// does not know.
func (s *scene) writtenByALaterRelease(n int) {
	s.Helper()
	for _, file := range s.recordFiles(hopper, n) {
		text, err := os.ReadFile(file)
		s.must(err)
		_, body, _ := bytes.Cut(text, []byte("\n"))
		record := map[string]any{}
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		s.must(decoder.Decode(&record))
		extend(record)
		body, err = json.Marshal(record)
		s.must(err)
		text = fmt.Appendf(nil, "gpu-claim-record 1 sha256=%x bytes=%d\n%s\n", sha256.Sum256(body), len(body), body)
		// In one step, since the plugin may look at any time.
		temporary := filepath.Join(filepath.Dir(file), ".e2e")
		s.must(os.WriteFile(temporary, text, 0o600))
		s.must(os.Rename(temporary, file))
	}
}

// extend adds the member to an object and to all objects in its lists.
func extend(object map[string]any) {
	for _, member := range object {
		list, _ := member.([]any)
		for _, item := range list {
			if inner, ok := item.(map[string]any); ok {
				extend(inner)
			}
		}
	}
	object[later] = map[string]any{"since": rig.Release}
}

// keepsWhatIsLater checks that all of it is still there.
func (s *scene) keepsWhatIsLater(n int) {
	s.Helper()
	for _, file := range s.recordFiles(hopper, n) {
		text, err := os.ReadFile(file)
		s.must(err)
		// In the record itself, and in one device at least.
		if found := strings.Count(string(text), later); found < 2 {
			s.Errorf("%s has lost what a later release wrote: %s", file, text)
		}
	}
}
