package runc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// NewRootfs lays out a root file system for a container in dir, which must exist and be empty: busybox
// and the C library of this machine, copied, so that hooks may write into it and dynamically linked
// programs that CDI mounts into it find their libraries. It takes some 10 MB.
func NewRootfs(ctx context.Context, dir string) error {
	for _, d := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "dev", "proc", "sys", "tmp", "run", "var", "root"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("lay out rootfs: %w", err)
		}
	}
	links := map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "../run"}
	for link, target := range links {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			return fmt.Errorf("lay out rootfs: %w", err)
		}
	}
	files := map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n", "ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("lay out rootfs: %w", err)
		}
	}
	if err := addBusybox(ctx, dir); err != nil {
		return err
	}
	return addLibc(ctx, dir)
}

// addBusybox copies busybox and links all its commands.
func addBusybox(ctx context.Context, dir string) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("find busybox (apt-get install busybox-static): %w", err)
	}
	if err := copyFile(path, filepath.Join(dir, "usr/bin/busybox")); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return fmt.Errorf("list busybox commands: %w", err)
	}
	for _, name := range strings.Fields(string(out)) {
		if name == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(dir, "usr/bin", name)); err != nil {
			return fmt.Errorf("link %s to busybox: %w", name, err)
		}
	}
	return nil
}

// addLibc copies the shared objects of package libc6, with the dynamic linker.
func addLibc(ctx context.Context, dir string) error {
	var stderr bytes.Buffer
	list := exec.CommandContext(ctx, "dpkg-query", "--listfiles", "libc6")
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("list files of libc6: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	copied := 0
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		name := filepath.Base(path)
		library := strings.Contains(name, ".so") && !strings.Contains(path, "/gconv/") && !strings.Contains(path, "/audit/")
		config := strings.HasPrefix(path, "/etc/ld.so.conf.d/")
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || (!library && !config) {
			continue
		}
		if err := copyFile(path, filepath.Join(dir, path)); err != nil {
			return err
		}
		copied++
	}
	if copied == 0 {
		return errors.New("package libc6 lists no shared objects")
	}
	return nil
}

// copyFile copies content and permissions, and makes missing directories.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy into rootfs: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("copy into rootfs: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("copy into rootfs: %w", err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return fmt.Errorf("copy into rootfs: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	return nil
}
