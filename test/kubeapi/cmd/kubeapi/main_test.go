package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestServesManifestsThroughItsKubeconfig(t *testing.T) {
	dir := t.TempDir()
	manifest, kubeconfig := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(manifest, []byte("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"--kubeconfig", kubeconfig, manifest}) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(kubeconfig); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatal("ended before it served: ", err)
		case <-tick.C:
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRefusesBadCalls(t *testing.T) {
	out := filepath.Join(t.TempDir(), "kubeconfig")
	for _, args := range [][]string{{}, {"--unknown"}, {"--kubeconfig", out, "/does/not/exist"}, {"--kubeconfig", out, "--listen", "nonsense"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}
