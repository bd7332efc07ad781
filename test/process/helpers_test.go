package process_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// prepare must succeed and give exactly those GPUs.
func prepare(t testing.TB, b *process.Bed, c kubelet.Claim, gpus ...int) []kubelet.Device {
	t.Helper()
	answer, err := b.Prepare(c)
	if err == nil {
		err = b.CheckPrepared(c, answer, gpus...)
	}
	if err != nil {
		t.Fatalf("prepare of claim %s: %v", c.Name, err)
	}
	return answer
}

func unprepare(t testing.TB, b *process.Bed, claims ...kubelet.Claim) {
	t.Helper()
	for _, c := range claims {
		if err := b.Unprepare(c); err != nil {
			t.Fatalf("unprepare of claim %s: %v", c.Name, err)
		}
	}
}

// refused must fail and say each of the words.
func refused(t testing.TB, b *process.Bed, c kubelet.Claim, words ...string) {
	t.Helper()
	_, err := b.Prepare(c)
	says(t, err, words...)
}

func says(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func clean(t testing.TB, b *process.Bed) {
	t.Helper()
	if left := b.Leftovers(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// pool gives the published devices in the order of the slices' names.
func pool(t testing.TB, b *process.Bed) []resourceapi.Device {
	t.Helper()
	list, err := b.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	slices.SortFunc(list.Items, func(x, y resourceapi.ResourceSlice) int { return strings.Compare(x.Name, y.Name) })
	var devices []resourceapi.Device
	for _, s := range list.Items {
		devices = append(devices, s.Spec.Devices...)
	}
	return devices
}

// devices gives the published devices, which must be so many: what is said of each device of a
// pool is true of an empty one.
func devices(t testing.TB, b *process.Bed, n int) []resourceapi.Device {
	t.Helper()
	found := pool(t, b)
	if len(found) != n {
		t.Fatalf("published are %v, want %d devices", names(found), n)
	}
	return found
}

func names(devices []resourceapi.Device) []string {
	var all []string
	for _, d := range devices {
		all = append(all, d.Name)
	}
	return all
}

func text(d resourceapi.Device, attribute resourceapi.QualifiedName) string {
	if v := d.Attributes[attribute].StringValue; v != nil {
		return *v
	}
	return ""
}

// sliceWrites are the plugin's changes of slices.
func sliceWrites(b *process.Bed) []kubeapi.Request {
	return b.API.Requests(kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Writes: true})
}

// looked waits until the plugin has looked n times at its slices.
func looked(t testing.TB, b *process.Bed, n int) {
	t.Helper()
	b.Eventually("looks at the slices", func() error {
		if found := looks(b); found < n {
			return fmt.Errorf("%d of %d", found, n)
		}
		return nil
	})
}

// lookedAgain waits until the plugin has looked n times more at its slices: what it is about to
// write comes before.
func lookedAgain(t testing.TB, b *process.Bed, n int) {
	t.Helper()
	looked(t, b, looks(b)+n)
}

func looks(b *process.Bed) int {
	return len(b.API.Requests(kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Verbs: []string{"list"}}))
}

// metric waits until the line is among the plugin's metrics.
func metric(t testing.TB, b *process.Bed, p *process.Plugin, line string) {
	t.Helper()
	b.Eventually("metric "+line, func() error {
		_, body, err := p.Get("/metrics")
		if err == nil && !slices.Contains(strings.Split(body, "\n"), line) {
			name, _, _ := strings.Cut(line, " ")
			name, _, _ = strings.Cut(name, "{")
			err = fmt.Errorf("not among %q", lines(body, name))
		}
		return err
	})
}

func lines(body, prefix string) []string {
	var all []string
	for _, l := range strings.Split(body, "\n") {
		if strings.HasPrefix(l, prefix) {
			all = append(all, l)
		}
	}
	return all
}

// all are the numbers of the first n GPUs.
func all(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// async runs one call beside the test.
func async(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}
