package process_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/scheduler"
)

// tenants asks the socket beside the plugin's, as an exporter on the node would.
func tenants(t testing.TB, b *process.Bed) (document map[string]any) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(b.DataDir(), "devices.sock"))
	}}}
	b.Eventually("answer of the socket", func() error {
		request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://localhost/v1/devices", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, text)
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(text, &document)
	})
	return document
}

// Who looks at a node's GPUs sees how they are, and whose they are, also while one of them hangs.
func TestWhatPeopleSee(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	// own is what the simulated driver keeps for itself.
	const own = 551 << 20
	must(t, b.Node.SetUsedMemory(0, 3<<30))
	p := b.Start(held(), process.Flag("health-interval", "1s"))
	p.WaitReady()
	first, second := b.Device(0), b.Device(1)
	user := pod("user", "claim")
	claim := b.Allocated("claim", []int{0}, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{scheduler.Consumer(user)}
	})
	prepare(t, b, claim, 0)
	uuid := b.Node.UUIDs()[0]
	owned := fmt.Sprintf(`gpu_dra_claim_info{claim="claim",device=%q,namespace="default",pod="user",uuid=%q} 1`, first, uuid)
	for _, line := range []string{
		owned, fmt.Sprintf(`gpu_dra_gpu_memory_used_bytes{device=%q} %v`, first, float64(own+3<<30)), fmt.Sprintf(`gpu_dra_device_severity{device=%q} 0`, first),
		`gpu_dra_prepare_duration_seconds_count{kind="gpu"} 1`, `gpu_dra_phase_duration_seconds_count{phase="claim_spec"} 1`,
	} {
		metric(t, b, p, line)
	}

	// One GPU hangs: its numbers stay, with the time at which they were read, and all others are read on.
	must(t, b.Node.FailCall(gpusim.CallFault{Function: "nvmlDeviceGetTemperature", GPU: 1, Hang: true, Count: gpusim.Forever}))
	must(t, b.Node.SetUsedMemory(0, 4<<30))
	metric(t, b, p, fmt.Sprintf(`gpu_dra_gpu_fault{code="",device=%q,kind="unresponsive"} 2`, second))
	metric(t, b, p, fmt.Sprintf(`gpu_dra_gpu_memory_used_bytes{device=%q} %v`, first, float64(own+4<<30)))
	_, body, err := p.Get("/metrics")
	if found := lines(body, fmt.Sprintf("gpu_dra_gpu_temperature_celsius{device=%q}", second)); err != nil || len(found) != 1 {
		t.Errorf("the last reading of a GPU that hangs: %q, %v", found, err)
	}
	must(t, b.Node.ClearFaults())

	document := tenants(t, b)
	devices, _ := document["devices"].([]any)
	if len(devices) != 1 {
		t.Fatalf("devices of %v", document)
	}
	device, _ := devices[0].(map[string]any)
	if document["version"] != "v1" || document["pool"] != process.NodeName || device["name"] != first || device["uuid"] != uuid || device["type"] != "gpu" {
		t.Errorf("%v", document)
	}
	unprepare(t, b, claim)
	b.Eventually("end of the claim's series", func() error {
		_, body, err := p.Get("/metrics")
		if err == nil && slices.Contains(strings.Split(body, "\n"), owned) {
			err = fmt.Errorf("still there: %s", owned)
		}
		return err
	})
	code, body, err := p.Get("/v1/devices")
	if err != nil || code != http.StatusOK || !strings.Contains(body, `"devices": []`) {
		t.Errorf("after the claim's end: %d %s %v", code, body, err)
	}
}

// ownMetrics are the lines of an answer that are about the driver itself.
func ownMetrics(body string) []string {
	return slices.DeleteFunc(strings.Split(body, "\n"), func(line string) bool { return !strings.Contains(line, "gpu_dra_") })
}

// seriesOf are the series of lines of an answer, without their values.
func seriesOf(lines []string) []string {
	var out []string
	for _, line := range lines {
		if series, _, ok := cutLast(line); ok && !strings.HasPrefix(line, "#") {
			out = append(out, series)
		}
	}
	return out
}

func cutLast(line string) (before, after string, found bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return "", "", false
	}
	return line[:i], line[i+1:], true
}

var record = flag.Bool("record-metrics", false, "write the answer of the metrics endpoint to test/chart/monitoring/testdata")

// Rules and dashboard are tried out on a recorded answer of the metrics endpoint, of a node on which
// much is wrong: all its series must be served today. After a change, or to use what is new, record it with
// go test -run TestRecordedMetrics ./test/process -record-metrics, and run the tests of test/chart/monitoring.
func TestRecordedMetrics(t *testing.T) {
	t.Parallel()
	const path = "../chart/monitoring/testdata/node.prom"
	b := process.New(t, "hgx-h100-8")
	must(t, b.Node.SetMIGMode(1, true))
	part, err := b.Node.CreateMIG(1, "1g.10gb", 0)
	must(t, err)
	p := b.Start(lasting(), process.Flag("mig-devices", "static"), process.Flag("rescan-interval", "1s"), process.Flag("health-interval", "1s"))
	p.WaitReady()
	user := pod("user", "claim")
	claim := b.Allocated("claim", []int{0}, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{scheduler.Consumer(user)}
	})
	prepare(t, b, claim, 0)
	unprepare(t, b, b.Allocated("unused", []int{4}))
	must(t, b.Node.SetUsedMemory(0, 3<<30))
	must(t, b.Node.InjectXID(0, gpusim.XID{Code: 79}))
	must(t, b.Node.InjectXID(1, gpusim.XID{Code: 94, GPUInstance: new(uint32(part.ID))}))
	must(t, b.Node.SetLink(2, 0, false))
	for _, line := range []string{
		fmt.Sprintf(`gpu_dra_claim_info{claim="claim",device=%q,namespace="default",pod="user",uuid=%q} 1`, b.Device(0), b.Node.UUIDs()[0]),
		fmt.Sprintf(`gpu_dra_gpu_fault{code="79",device=%q,kind="xid"} 3`, b.Device(0)),
		fmt.Sprintf(`gpu_dra_device_severity{device="%s-mig-1g-10gb-0"} 2`, b.Device(1)),
		fmt.Sprintf(`gpu_dra_gpu_nvlink_links{device=%q,state="down"} 1`, b.Device(2)),
		fmt.Sprintf(`gpu_dra_gpu_fault{code="down",device=%q,kind="nvlink"} 1`, b.Device(2)),
	} {
		metric(t, b, p, line)
	}
	// The other end of the link, and readings of all GPUs.
	var answer []string
	b.Eventually("series", func() error {
		_, body, err := p.Get("/metrics")
		if err != nil {
			return err
		}
		answer = ownMetrics(body)
		if *record {
			return os.WriteFile(path, []byte(strings.Join(answer, "\n")+"\n"), 0o600)
		}
		recorded, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		served, gone := seriesOf(answer), seriesOf(strings.Split(string(recorded), "\n"))
		gone = slices.DeleteFunc(gone, func(series string) bool { return slices.Contains(served, series) })
		if len(gone) > 0 {
			return fmt.Errorf("%d series are recorded and not served any more: %q", len(gone), gone)
		}
		return nil
	})
}
