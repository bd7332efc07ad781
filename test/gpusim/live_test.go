package gpusim_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/test/gpusim"
)

// liveChild keeps one NVML session and answers questions from its standard input, one a
// line, so that a test can change the node between two questions of one process.
func liveChild(lib nvml.Interface, _ []string) (any, error) {
	devices := map[int]nvml.Device{}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		var numbers []int
		for _, word := range words[1:] {
			n, err := strconv.Atoi(word)
			if err != nil {
				return nil, err
			}
			numbers = append(numbers, n)
		}
		fmt.Fprintln(os.Stdout, answer(lib, devices, words[0], numbers))
	}
	return nil, in.Err()
}

func answer(lib nvml.Interface, devices map[int]nvml.Device, verb string, n []int) string {
	switch verb {
	case "init":
		return code(lib.Init())
	case "shutdown":
		return code(lib.Shutdown())
	case "count":
		return orText(lib.DeviceGetCount())
	case "handle":
		d, ret := lib.DeviceGetHandleByIndex(n[0])
		if ret == nvml.SUCCESS {
			devices[n[0]] = d
		}
		return code(ret)
	case "p2p":
		return orText(devices[n[0]].GetP2PStatus(devices[n[1]], nvml.P2P_CAPS_INDEX_NVLINK))
	case "wait":
		return waitForEvent(lib, devices, n)
	}
	return answerDevice(devices[n[0]], verb, n)
}

func answerDevice(d nvml.Device, verb string, n []int) string {
	switch verb {
	case "uuid":
		return orText(d.GetUUID())
	case "name":
		return orText(d.GetName())
	case "minor":
		return orText(d.GetMinorNumber())
	case "serial":
		return orText(d.GetSerial())
	case "module":
		return orText(d.GetModuleId())
	case "mig":
		is, ret := d.IsMigDeviceHandle()
		return orText(is, ret)
	case "used":
		memory, ret := d.GetMemoryInfo_v2()
		return orText(memory.Used, ret)
	case "link":
		return orText(d.GetNvLinkState(n[1]))
	case "fabric":
		info, ret := d.GetGpuFabricInfo()
		return orText(fmt.Sprint(info.State, info.Status, info.CliqueId), ret)
	case "recovery":
		values := []nvml.FieldValue{{FieldId: 230}}
		if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
			return code(ret)
		}
		return orText(values[0].Value[0], nvml.Return(values[0].NvmlReturn))
	case "compute":
		return orText(d.GetComputeMode())
	case "setcompute":
		return code(d.SetComputeMode(nvml.ComputeMode(n[1])))
	case "setpersistence":
		return code(d.SetPersistenceMode(nvml.EnableState(n[1])))
	}
	return answerMIG(d, verb, n[1:])
}

// waitForEvent registers GPU n[0] for XIDs and waits n[1] milliseconds.
func waitForEvent(lib nvml.Interface, devices map[int]nvml.Device, n []int) string {
	set, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return code(ret)
	}
	defer func() { _ = set.Free() }()
	if ret := devices[n[0]].RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		return code(ret)
	}
	fmt.Fprintln(os.Stdout, "waiting")
	start := time.Now()
	event, ret := set.Wait(uint32(n[1]))
	if ret != nvml.SUCCESS {
		return fmt.Sprintf("%s %t", code(ret), time.Since(start) >= time.Duration(n[1])*time.Millisecond)
	}
	return fmt.Sprintf("event %d %d %d", event.EventType, event.EventData, event.GpuInstanceId)
}

// session is a running live child.
type session struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// openSession starts a live child on a node; it ends with the test.
func openSession(t *testing.T, node *gpusim.Node) *session {
	t.Helper()
	cmd := childCommand(t, node, "live")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return s
}

// start opens a session with NVML initialised and the handles of the first count GPUs.
func start(t *testing.T, node *gpusim.Node, count int) *session {
	t.Helper()
	s := openSession(t, node)
	s.want("init", "code 0")
	for i := range count {
		s.want(fmt.Sprintf("handle %d", i), "code 0")
	}
	return s
}

func (s *session) send(question string) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.in, question); err != nil {
		s.t.Fatalf("%s: %v", question, err)
	}
}

func (s *session) receive() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("child went away: %v", err)
	}
	return strings.TrimSpace(line)
}

func (s *session) ask(question string) string {
	s.t.Helper()
	s.send(question)
	return s.receive()
}

// want asks and compares.
func (s *session) want(question, expected string) {
	s.t.Helper()
	if got := s.ask(question); got != expected {
		s.t.Errorf("%s: got %q, want %q", question, got, expected)
	}
}
