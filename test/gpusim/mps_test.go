package gpusim_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// service is a control daemon's place: its directories and what the daemon sees.
type service struct {
	t    *testing.T
	node *gpusim.Node
	dir  string
	// device is a UUID.
	device string
}

func newService(t *testing.T, node *gpusim.Node, device string) *service {
	t.Helper()
	s := &service{t: t, node: node, dir: t.TempDir(), device: device}
	t.Cleanup(func() {
		if err := node.ClearFaults(); err != nil {
			t.Error(err)
		}
		s.tell("quit -t 0")
	})
	return s
}

func (s *service) env() []string {
	return append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(s.dir, "pipe"), "CUDA_MPS_LOG_DIRECTORY="+filepath.Join(s.dir, "log"),
		"CUDA_VISIBLE_DEVICES="+s.device)
}

// daemon starts a control daemon in the background.
func (s *service) daemon(args ...string) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.node.MPSControl(), append([]string{"-d"}, args...)...)
	cmd.Env = s.env()
	if out, exit := outputOf(s.t, cmd); exit != 0 {
		s.t.Fatalf("start the daemon: exit %d, %s", exit, out)
	}
}

// foreground starts a control daemon as a child.
func (s *service) foreground() *exec.Cmd {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.node.MPSControl(), "-f")
	cmd.Env = s.env()
	do(s.t, cmd.Start())
	return cmd
}

// tell sends commands and returns what they print.
func (s *service) tell(commands ...string) (string, int) {
	// Also after the test, whose own context has ended by then.
	cmd := exec.CommandContext(context.Background(), s.node.MPSControl())
	cmd.Env, cmd.Stdin = s.env(), strings.NewReader(strings.Join(commands, "\n")+"\n")
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// waitReady waits until the daemon answers.
func (s *service) waitReady() {
	s.t.Helper()
	for {
		if _, exit := s.tell("get_server_list"); exit == 0 {
			return
		}
		do(s.t, s.t.Context().Err())
	}
}

func (s *service) pid() int {
	text, err := os.ReadFile(filepath.Join(s.dir, "pipe/nvidia-cuda-mps-control.pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

func (s *service) servers() []int {
	out, exit := s.tell("get_server_list")
	var pids []int
	for _, word := range strings.Fields(out) {
		if pid, err := strconv.Atoi(word); err == nil && exit == 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// program is a running gpusim-client.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start runs gpusim-client; what it prints is read by line.
func (s *service) start(args ...string) *program {
	s.t.Helper()
	return startProgram(s.t, s.node, s.env(), args...)
}

func startProgram(t *testing.T, node *gpusim.Node, env []string, args ...string) *program {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), node.Client(), args...)
	return startCommand(t, cmd, env)
}

func startCommand(t *testing.T, cmd *exec.Cmd, env []string) *program {
	t.Helper()
	cmd.Env, cmd.Stderr = env, os.Stderr
	in, err := cmd.StdinPipe()
	do(t, err)
	out, err := cmd.StdoutPipe()
	do(t, err)
	do(t, cmd.Start())
	p := &program{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = p.in.Close()
		_ = p.cmd.Wait()
	})
	return p
}

// line reads one line, empty at the end.
func (p *program) line() string {
	line, _ := p.out.ReadString('\n')
	return strings.TrimSpace(line)
}

// want reads a line that must hold these words.
func (p *program) want(words ...string) {
	p.t.Helper()
	line := p.line()
	for _, word := range words {
		if !strings.Contains(line, word) {
			p.t.Errorf("the program said %q, want %q in it", line, word)
		}
	}
}

func (p *program) order(line string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, line)
	do(p.t, err)
}

// end closes the input and returns the exit code.
func (p *program) end() int {
	_ = p.in.Close()
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func TestMPSControlCommands(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := newService(t, node, node.UUIDs()[1])
	if out, exit := s.tell("get_server_list"); exit != 1 || out != "Cannot find MPS control daemon process\n" {
		t.Errorf("without a daemon: exit %d, %q", exit, out)
	}
	s.daemon()
	s.waitReady()
	second := exec.CommandContext(t.Context(), node.MPSControl(), "-d")
	second.Env = s.env()
	if out, exit := outputOf(t, second); exit != 1 || out != "An instance of this daemon is already running\n" {
		t.Errorf("a second daemon: exit %d, %q", exit, out)
	}
	for _, test := range []struct{ command, want string }{
		{"get_default_active_thread_percentage", "100.0\n"},
		{"set_default_active_thread_percentage 37.5", "37.5\n"},
		{"get_default_active_thread_percentage", "37.5\n"},
		{"set_default_active_thread_percentage 0", "Invalid active thread percentage 0: must be above 0 and at most 100\n"},
		{"set_default_active_thread_percentage", "Missing argument of set_default_active_thread_percentage\n"},
		{"get_default_device_pinned_mem_limit 0", "unlimited\n"},
		{"set_default_device_pinned_mem_limit 0 2G\nget_default_device_pinned_mem_limit 0", "2048M\n"},
		{"set_default_device_pinned_mem_limit 1 512M\nget_default_device_pinned_mem_limit 1", "512M\n"},
		{"set_default_device_pinned_mem_limit 0 lots", "Invalid pinned memory limit lots\n"},
		{"set_default_device_pinned_mem_limit " + node.UUIDs()[1] + " 1M\nget_default_device_pinned_mem_limit 0", "2048M\n"},
		{"get_client_list 1", "Cannot find MPS server with PID 1\n"},
		{"start_server 0", "Missing argument of start_server\n"},
		{"start_server -gid 0", "Usage: start_server -uid <user id>\n"},
		{"dance", "Unknown command: dance\n"},
		{"get_server_list", ""},
		{"ps", "PID       ID    SERVER    DEVICE               NAMESPACE    COMMAND\n"},
	} {
		if got, exit := s.tell(test.command); got != test.want || exit != 0 {
			t.Errorf("%s: exit %d, %q, want %q", test.command, exit, got, test.want)
		}
	}
	if out, exit := s.tell("quit"); exit != 0 || out != "" {
		t.Errorf("quit: exit %d, %q", exit, out)
	}
	if _, exit := s.tell("get_server_list"); exit != 1 {
		t.Error("after quit the daemon answers")
	}
}

func TestMPSServesClients(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, node.SetComputeMode(1, gpusim.ComputeExclusiveProcess))
	s := newService(t, node, node.UUIDs()[1])
	s.daemon()
	s.waitReady()
	s.tell("set_default_active_thread_percentage 50", "set_default_device_pinned_mem_limit 0 1G")
	first := s.start("--allocate", "512")
	first.want("uuid="+node.UUIDs()[1], "compute_mode=3", "thread_percentage=50.0", "pinned_limit=1024", "allocated=0")
	first.want("allocated device=0 mib=512 total=512")
	servers := s.servers()
	if len(servers) != 1 {
		t.Fatalf("servers %v, want one", servers)
	}
	second := startProgram(t, node, append(s.env(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=256M"))
	second.want("thread_percentage=20.0", "pinned_limit=256")
	second.order("allocate 257")
	second.want("code=2", "CUDA_ERROR_OUT_OF_MEMORY", "pinned memory limit of 256 MiB")
	second.order("allocate 200")
	second.want("total=200")
	server := strconv.Itoa(servers[0])
	s.tell("set_active_thread_percentage "+server+" 10", "set_device_pinned_mem_limit "+server+" 0 600M")
	if out, _ := s.tell("get_active_thread_percentage "+server, "get_device_pinned_mem_limit "+server+" 0", "get_server_status "+server); out != "10.0\n600M\nACTIVE\n" {
		t.Errorf("what the server was told reads %q", out)
	}
	first.order("status")
	first.want("thread_percentage=10.0")
	first.order("allocate 100")
	first.want("pinned memory limit of 600 MiB, 512 MiB used")
	direct := startProgram(t, node, append(s.env(), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir()))
	direct.want("code=46", "CUDA_ERROR_DEVICE_UNAVAILABLE")
	if exit := direct.end(); exit != 1 {
		t.Errorf("a program beside the server ends with %d, want 1", exit)
	}
	wantProcesses(t, node, 1, map[int]int{servers[0]: 0, first.cmd.Process.Pid: 512, second.cmd.Process.Pid: 200})
	if out, _ := s.tell("get_client_list " + server); !strings.Contains(out, fmt.Sprintln(first.cmd.Process.Pid)) {
		t.Errorf("clients of the server: %q", out)
	}
	out, _ := smi(t, node, "-i", "1")
	if kinds := regexp.MustCompile(`M\+C|  C  `).FindAllString(out, -1); len(kinds) != 3 {
		t.Errorf("kinds of processes %q in\n%s", kinds, out)
	}
	s.tell("terminate_client " + server + " " + strconv.Itoa(second.cmd.Process.Pid))
	second.want("code=810", "CUDA_ERROR_MPS_CLIENT_TERMINATED")
	do(t, first.cmd.Process.Kill())
	_ = first.cmd.Wait()
	if out, exit := s.tell("quit"); exit != 0 {
		t.Errorf("quit: exit %d, %q", exit, out)
	}
	wantProcesses(t, node, 1, map[int]int{})
}

// wantProcesses compares the clients of a GPU and their memory in MiB.
func wantProcesses(t *testing.T, node *gpusim.Node, number int, want map[int]int) {
	t.Helper()
	list, err := node.Processes(number)
	do(t, err)
	got := map[int]int{}
	for _, p := range list {
		got[p.PID] = p.Memory
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("processes of GPU %d (-want +got):\n%s", number, diff)
	}
}

func TestMPSOutlivesItsDaemon(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, node.SetComputeMode(0, gpusim.ComputeExclusiveProcess))
	s := newService(t, node, node.UUIDs()[0])
	daemon := s.foreground()
	s.waitReady()
	client := s.start()
	client.want("mps=")
	do(t, daemon.Process.Kill())
	_ = daemon.Wait()
	client.order("allocate 64")
	client.want("total=64")
	// Nobody listens: the next one goes its own way, and the mode does not admit it.
	late := s.start()
	late.want("CUDA_ERROR_DEVICE_UNAVAILABLE")
	// A new daemon takes the directory; its server gets the GPU when the old one is gone.
	s.daemon()
	s.waitReady()
	early := s.start()
	early.want("code=807", "CUDA_ERROR_MPS_SERVER_NOT_READY")
	if exit := client.end(); exit != 0 {
		t.Errorf("the client ended with %d", exit)
	}
	waitProcesses(t, node, 0, 0)
	again := s.start()
	again.want("mps=")
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-server:orphan", GPU: gpusim.AnyGPU, Code: 999}))
	do(t, syscall.Kill(s.pid(), syscall.SIGKILL))
	again.want("code=806", "CUDA_ERROR_MPS_RPC_FAILURE")
}

// waitProcesses waits until a GPU has count clients.
func waitProcesses(t *testing.T, node *gpusim.Node, number, count int) {
	t.Helper()
	for {
		list, err := node.Processes(number)
		do(t, errors.Join(err, t.Context().Err()))
		if len(list) == count {
			return
		}
	}
}

func TestMPSEndsWithItsServer(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := newService(t, node, node.UUIDs()[0])
	s.daemon()
	s.waitReady()
	s.tell("start_server -uid 0")
	for len(s.servers()) == 0 {
		do(t, t.Context().Err())
	}
	client := s.start("--hold")
	client.want("mps=")
	do(t, syscall.Kill(s.servers()[0], syscall.SIGKILL))
	client.want("code=806", "the server went away")
	if exit := client.end(); exit != 1 {
		t.Errorf("without its server the client ended with %d, want 1", exit)
	}
	again := s.start("--hold")
	again.want("mps=")
	server := s.servers()[0]
	if out, exit := s.tell("shutdown_server " + strconv.Itoa(server) + " -f"); exit != 0 || out != "" {
		t.Errorf("shutdown: exit %d, %q", exit, out)
	}
	again.want("code=806")
	held := s.start("--hold")
	held.want("mps=")
	if out, exit := s.tell("quit -t 0"); exit != 0 {
		t.Errorf("quit that waits for nobody: exit %d, %q", exit, out)
	}
	held.want("code=806")
	s.gone()
	stopped := s.foreground()
	s.waitReady()
	do(t, stopped.Process.Signal(syscall.SIGTERM))
	if err := stopped.Wait(); err != nil {
		t.Errorf("told to end, the daemon ended with %v", err)
	}
}

func TestMPSOfSeveralUsers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		args   []string
		shared bool
	}{{"one at a time", nil, false}, {"all at once", []string{"-multiuser-server"}, true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			node := gpusim.New(t, "t4-4")
			s := newService(t, node, node.UUIDs()[0])
			// Another user must get through to the files.
			do(t, os.Chmod(filepath.Dir(node.Dir()), 0o755))
			for _, dir := range []string{node.Dir(), s.dir} {
				do(t, os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755))
				do(t, os.Chmod(filepath.Dir(dir), 0o755))
			}
			s.daemon(test.args...)
			s.waitReady()
			first := s.start()
			first.want("mps=")
			server := s.servers()[0]
			cmd := exec.CommandContext(t.Context(), node.Client())
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
			other := startCommand(t, cmd, s.env())
			if !test.shared {
				// It is let in when the first user is done, by a server of its own.
				for out := ""; !strings.Contains(out, "user 1000"); {
					text, err := os.ReadFile(filepath.Join(s.dir, "log/control.log"))
					do(t, errors.Join(err, t.Context().Err()))
					out = string(text)
				}
				first.order("quit")
			}
			line := other.line()
			if got := strings.Contains(line, fmt.Sprintf("mps=%d ", server)); got != test.shared {
				t.Errorf("the second user got %q; the first has server %d", line, server)
			}
			other.order("quit")
		})
	}
}

func TestMPSOnMIG(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "hgx-h100-8", gpusim.WithFile(func(f *nodefile.File) {
		f.GPUs[0].MIG = &nodefile.MIG{Enabled: true, Instances: []nodefile.MIGInstance{{Profile: "2g.20gb"}, {Profile: "1g.10gb"}}}
	}))
	instances, err := node.MIGInstances(0)
	do(t, err)
	mig := instances[0].Compute[0].UUID
	_, exit := smi(t, node, "-i", mig, "-c", "3")
	if exit != 0 {
		t.Fatalf("compute mode of the MIG device: exit %d", exit)
	}
	s := newService(t, node, mig)
	s.daemon()
	s.waitReady()
	s.tell("set_default_device_pinned_mem_limit 0 100M")
	client := s.start("--allocate", "60")
	client.want("uuid="+mig, "compute_mode=3", "pinned_limit=100")
	client.want("total=60")
	// The other instance has its own mode and knows nothing of it.
	beside := startProgram(t, node, append(s.env(), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir(), "CUDA_VISIBLE_DEVICES="+instances[1].Compute[0].UUID))
	beside.want("mps=none", instances[1].Compute[0].UUID)
	beside.order("allocate 20000")
	beside.want("CUDA_ERROR_OUT_OF_MEMORY")
	if err := node.DestroyMIG(0, instances[0].ID); err == nil || !strings.Contains(err.Error(), "In use by another client") {
		t.Errorf("an instance with clients was ended: %v", err)
	}
	client.order("quit")
	if _, exit := s.tell("quit"); exit != 0 {
		t.Errorf("quit: exit %d", exit)
	}
	do(t, node.DestroyMIG(0, instances[0].ID))
	whole := startProgram(t, node, append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir(), "CUDA_VISIBLE_DEVICES="+node.UUIDs()[0]))
	whole.want("CUDA_ERROR_NO_DEVICE")
}

// gone waits until a daemon that was seen to end has let go of its lock: the end of a connection is
// seen before that.
func (s *service) gone() {
	s.t.Helper()
	lock, err := os.OpenFile(filepath.Join(s.dir, "pipe", "control_lock"), os.O_RDWR, 0)
	do(s.t, err)
	do(s.t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	do(s.t, lock.Close())
}

func TestMPSFaults(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	s := newService(t, node, node.UUIDs()[0])
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-control:ready", GPU: gpusim.AnyGPU, Hang: true}))
	s.daemon()
	answered := make(chan int, 1)
	go func() {
		_, exit := s.tell("get_server_list")
		answered <- exit
	}()
	select {
	case exit := <-answered:
		t.Errorf("a daemon that hangs answers, exit %d", exit)
	default:
	}
	do(t, node.ClearFaults())
	if exit := <-answered; exit != 0 {
		t.Errorf("when it goes on the daemon answers with %d", exit)
	}
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-control:get_server_list", GPU: gpusim.AnyGPU, Code: 999}))
	if out, exit := s.tell("get_server_list"); exit != 0 || out != "get_server_list failed: Unknown Error\n" {
		t.Errorf("a command that fails: exit %d, %q", exit, out)
	}
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-server", GPU: gpusim.AnyGPU, Code: 999}))
	client := s.start()
	client.want("code=807", "the server failed to start")
	do(t, node.FailCall(gpusim.CallFault{Function: "gpusim-client:allocate", GPU: 0, Code: 999}))
	client = s.start("--allocate", "1")
	client.want("mps=")
	client.want("code=999")
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-control:crash", GPU: gpusim.AnyGPU, Code: 999}))
	if out, _ := s.tell("ps", "ps"); !strings.HasSuffix(out, "Lost the MPS control daemon process\n") {
		t.Errorf("a daemon that dies: %q", out)
	}
	s.gone()
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-control", GPU: gpusim.AnyGPU, Code: 999}))
	if err := s.foreground().Wait(); err == nil {
		t.Error("a daemon that fails to start ends well")
	}
	do(t, node.FailCall(gpusim.CallFault{Function: "nvidia-cuda-mps-control", GPU: gpusim.AnyGPU, Code: 999}))
	background := exec.CommandContext(t.Context(), node.MPSControl(), "-d")
	background.Env = s.env()
	if out, exit := outputOf(t, background); exit == 0 {
		t.Errorf("a daemon that fails to start in the background: exit %d, %q", exit, out)
	}
	s.daemon()
	s.waitReady()
	client = s.start()
	client.want("mps=")
}

func TestExclusiveModeAdmitsOne(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	do(t, node.SetComputeMode(2, gpusim.ComputeExclusiveProcess))
	env := append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir(), "CUDA_VISIBLE_DEVICES=2")
	programs := make([]*program, 12)
	for i := range programs {
		programs[i] = startProgram(t, node, env)
	}
	admitted := 0
	for _, p := range programs {
		line := p.line()
		switch {
		case strings.HasPrefix(line, "open "):
			admitted++
		case !strings.Contains(line, "CUDA_ERROR_DEVICE_UNAVAILABLE"):
			t.Errorf("a program said %q", line)
		}
	}
	if admitted != 1 {
		t.Errorf("%d programs were admitted, want 1", admitted)
	}
	do(t, node.SetComputeMode(3, gpusim.ComputeProhibited))
	startProgram(t, node, append(env, "CUDA_VISIBLE_DEVICES=3")).want("CUDA_ERROR_DEVICE_UNAVAILABLE")
}

func TestRacingClientsShareTheMemory(t *testing.T) {
	t.Parallel()
	const each, count = 1000, 20
	node := gpusim.New(t, "t4-4")
	free, _ := smi(t, node, "-i", "0", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
	room, err := strconv.Atoi(strings.TrimSpace(free))
	do(t, err)
	env := append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir(), "CUDA_VISIBLE_DEVICES=0")
	programs := make([]*program, count)
	var group sync.WaitGroup
	got := make([]string, count)
	for i := range programs {
		programs[i] = startProgram(t, node, env, "--allocate", strconv.Itoa(each))
		group.Go(func() {
			programs[i].line()
			got[i] = programs[i].line()
		})
	}
	group.Wait()
	served := 0
	for _, line := range got {
		switch {
		case strings.Contains(line, "total=1000"):
			served++
		case !strings.Contains(line, "CUDA_ERROR_OUT_OF_MEMORY"):
			t.Errorf("a program said %q", line)
		}
	}
	if served != room/each {
		t.Errorf("%d programs got %d MiB each of %d, want %d", served, each, room, room/each)
	}
	for i, p := range programs {
		if i%2 == 0 {
			_ = p.cmd.Process.Kill()
		}
		_ = p.end()
	}
	wantProcesses(t, node, 0, map[int]int{})
	if used, _ := smi(t, node, "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"); used != "0\n" {
		t.Errorf("after the programs %s MiB are used", strings.TrimSpace(used))
	}
}

func TestClientSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	node := gpusim.New(t, "t4-4")
	env := append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir())
	run := func(env []string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), node.Client(), args...)
		cmd.Env = env
		var out bytes.Buffer
		cmd.Stdout = &out
		_ = cmd.Run()
		return out.String()
	}
	for _, test := range []struct {
		name, visible, want string
		args                []string
	}{
		{"no GPU", "", "CUDA_ERROR_NO_DEVICE", nil},
		{"list ends at what is unknown", "1,9,2", "there are 1 devices", []string{"--device", "1"}},
		{"second of a list", "1,3", "uuid=" + node.UUIDs()[3], []string{"--device", "1"}},
		{"start of a UUID", node.UUIDs()[2][:12], "uuid=" + node.UUIDs()[2], nil},
		{"unknown option", "0", "usage: gpusim-client", []string{"--color"}},
	} {
		if got := run(append(env, "CUDA_VISIBLE_DEVICES="+test.visible), test.args...); !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q in it", test.name, got, test.want)
		}
	}
	do(t, os.Remove(filepath.Join(node.DevRoot(), "dev/nvidia-uvm")))
	if got := run(env); !strings.Contains(got, `code=100 name=CUDA_ERROR_NO_DEVICE detail="open nvidia-uvm: No such file or directory"`) {
		t.Errorf("without a node: %q", got)
	}
}
