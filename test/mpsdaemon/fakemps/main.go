// Command fakemps stands in for nvidia-cuda-mps-control: with -d a daemon that listens in the pipe
// directory, without arguments its front end. It knows the commands that the supervisor uses, and
// some to look into it: "env NAME" and "start_server", which has it start a server process.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const server = "nvidia-cuda-mps-server"

func main() {
	if err := run(context.Background(), os.Args); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case filepath.Base(args[0]) == server:
		for {
			time.Sleep(time.Hour)
		}
	case slices.Contains(args, "--child"):
		return serve(ctx)
	case slices.Contains(args, "-d"):
		return daemonize(ctx, args)
	}
	return frontEnd(ctx)
}

func fault(name string) bool {
	self, err := os.Executable()
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(filepath.Dir(self), "../..", name))
	return err == nil
}

func socket() string { return filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control") }

// daemonize returns when the child listens, which it says by a byte on a pipe.
func daemonize(ctx context.Context, args []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	// By its path: the kernel shows the last part of it as the process' name.
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, append(args[1:], "--child")...)
	cmd.Args[0] = args[0]
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if n, _ := r.Read(make([]byte, 1)); n != 1 {
		return errors.New("the daemon did not start")
	}
	return nil
}

// state is what the daemon was told.
type state struct {
	threads string
	memory  map[string]string
	servers []*exec.Cmd
}

func serve(ctx context.Context) error {
	if fault("fails-to-start") {
		log := filepath.Join(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "control.log")
		return errors.Join(errors.New("told to fail"), os.WriteFile(log, []byte("Failed: told to fail\n"), 0o644))
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket())
	if err != nil {
		return err
	}
	ready := os.NewFile(3, "ready")
	if _, err := ready.Write([]byte{1}); err != nil {
		return err
	}
	if err := ready.Close(); err != nil {
		return err
	}
	s := &state{threads: "100.0", memory: map[string]string{}}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if fault("never-answers") {
			continue
		}
		if done, err := s.answer(ctx, conn); done || err != nil {
			return err
		}
	}
}

func (s *state) answer(ctx context.Context, conn net.Conn) (done bool, err error) {
	defer func() { err = errors.Join(err, conn.Close()) }()
	for lines := bufio.NewScanner(conn); !done && lines.Scan(); {
		var out string
		out, done, err = s.command(ctx, append(strings.Fields(lines.Text()), "", "", ""))
		if err != nil {
			return done, err
		}
		if _, err := io.WriteString(conn, out); err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *state) command(ctx context.Context, words []string) (out string, done bool, err error) {
	switch words[0] {
	case "get_server_list":
		for _, c := range s.servers {
			out += strconv.Itoa(c.Process.Pid) + "\n"
		}
	case "start_server":
		out, err = s.start(ctx)
	case "set_default_active_thread_percentage":
		if !fault("ignores-limits") {
			s.threads = words[1] + ".0"
		}
		out = words[1] + ".0\n"
	case "get_default_active_thread_percentage":
		out = s.threads + "\n"
	case "set_default_device_pinned_mem_limit":
		if !fault("ignores-limits") {
			s.memory[words[1]] = words[2]
		}
	case "get_default_device_pinned_mem_limit":
		out = s.memory[words[1]] + "\n"
	case "env":
		out = os.Getenv(words[1]) + "\n"
	case "quit":
		done = !fault("will-not-quit")
		for _, c := range s.servers {
			if done {
				err = errors.Join(err, c.Process.Kill())
			}
		}
	default:
		out = "Unknown command\n"
	}
	return out, done, err
}

func (s *state) start(ctx context.Context) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = []string{server}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	s.servers = append(s.servers, cmd)
	return strconv.Itoa(cmd.Process.Pid) + "\n", nil
}

func frontEnd(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket())
	if err != nil {
		return fmt.Errorf("cannot find the control daemon: %w", err)
	}
	if _, err := io.Copy(conn, os.Stdin); err != nil {
		return err
	}
	half, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("no unix socket")
	}
	if err := half.CloseWrite(); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, conn)
	return err
}
