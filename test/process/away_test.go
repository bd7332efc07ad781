package process_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/process"
)

// Without an API server the plugin starts, registers and unprepares; a prepare cannot work, since
// the claim is read from there. When the API server comes the slices do too.
func TestAPIAway(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	p := b.Start()
	p.WaitReady()
	first, second := b.Allocated("first", []int{0}), b.Allocated("second", []int{1, 2})
	prepare(t, b, first, 0)
	prepare(t, b, second, 1, 2)
	must(t, b.API.Away())
	unprepare(t, b, first)
	p.Kill()

	p = b.Start()
	t.Logf("registered after %s", time.Since(p.Started))
	unprepare(t, b, second)
	clean(t, b)
	refused(t, b, first, "connection refused")
	if code, body, err := p.Get("/readyz"); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("ready without slices: %d, %s, %v", code, body, err)
	}
	if code, body, err := p.Get("/healthz"); err != nil || code != http.StatusOK {
		t.Errorf("not live: %d, %s, %v", code, body, err)
	}
	// The library waits for the API server without end; the process must not wait with it.
	asked := time.Now()
	p.Terminate()
	t.Logf("it took %s to end", time.Since(asked))
	p = b.Start()

	must(t, b.API.Back())
	prepare(t, b, first, 0)
	p.WaitReady()
	if n := len(pool(t, b)); n != 8 {
		t.Errorf("%d devices", n)
	}
	unprepare(t, b, first)
	clean(t, b)
}

// An API server in trouble: an error is the claim's and gone at the next try; being told to come
// back, and waiting, end well in the same call.
func TestAPITrouble(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	get := kubeapi.Match{User: process.APIUser, Verbs: []string{"get"}, Resource: "resourceclaims"}
	claim := b.Allocated("claim", []int{1})
	for name, row := range map[string]struct {
		fault   kubeapi.Fault
		refusal string
	}{
		"500":       {kubeapi.Fault{Times: 1, Code: 500}, "injected fault"},
		"403":       {kubeapi.Fault{Times: 1, Code: 403}, "injected fault"},
		"404":       {kubeapi.Fault{Times: 1, Code: 404}, "could not find"},
		"429":       {kubeapi.Fault{Times: 1, Code: 429, RetryAfter: 1}, ""},
		"503":       {kubeapi.Fault{Times: 1, Code: 503, RetryAfter: 1}, ""},
		"slow":      {kubeapi.Fault{Times: 1, Delay: 1500 * time.Millisecond}, ""},
		"cut short": {kubeapi.Fault{Times: 1, Drop: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			row.fault.Match = get
			remove := b.API.Inject(row.fault)
			defer remove()
			if row.refusal != "" {
				refused(t, b, claim, row.refusal)
				clean(t, b)
			}
			prepare(t, b, claim, 1)
			unprepare(t, b, claim)
			clean(t, b)
		})
	}
}

// Slices that the API server refuses show in the readiness, in an Event and in the log, and are
// published as soon as it takes them.
func TestSlicesRefused(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	remove := b.API.Inject(kubeapi.Fault{
		Match: kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Writes: true}, Code: 403,
	})
	p := b.Start()
	event(t, b, "SlicesRefused", "injected fault")
	_, body, err := p.Get("/readyz")
	must(t, err)
	if len(lines(body, "[-] ResourceSlices")) != 1 {
		t.Errorf("readiness: %s", body)
	}
	claim := b.Allocated("claim", []int{1})
	prepare(t, b, claim, 1)
	unprepare(t, b, claim)
	// The refusals so far were few: neither the API server nor prepare may drown in them.
	if n := len(b.API.Requests(kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Writes: true})); n > 30 {
		t.Errorf("%d writes were tried in %s", n, time.Since(p.Started))
	}
	remove()
	p.WaitReady()
	if n := len(pool(t, b)); n != 4 {
		t.Errorf("%d devices", n)
	}
}
