package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/test/kubelet"
)

// floor is the least that a durable prepare can cost on this machine: two files replaced so that they survive
// a loss of power, and one read of the claim.
type floor struct {
	dir    string
	client kubernetes.Interface
	claim  kubelet.Claim
}

// cost is one measurement of the floor.
type cost struct {
	files, get time.Duration
}

// sizes are about those of a claim's record and of its CDI spec, in bytes.
func sizes() []int { return []int{700, 800} }

func (f floor) once(ctx context.Context) (cost, error) {
	var c cost
	begun := time.Now()
	for i, size := range sizes() {
		if err := replaceDurably(filepath.Join(f.dir, fmt.Sprintf("floor-%d.json", i)), make([]byte, size)); err != nil {
			return c, err
		}
	}
	c.files = time.Since(begun)
	begun = time.Now()
	claim, err := f.client.ResourceV1().ResourceClaims(f.claim.Namespace).Get(ctx, f.claim.Name, metav1.GetOptions{})
	c.get = time.Since(begun)
	if err != nil {
		return c, fmt.Errorf("floor: %w", err)
	}
	if claim.UID != f.claim.UID {
		return c, fmt.Errorf("floor: claim %s/%s has another UID", claim.Namespace, claim.Name)
	}
	return c, nil
}

// replaceDurably replaces a file: write, fsync, rename, fsync of the directory.
func replaceDurably(path string, content []byte) error {
	temp := path + ".tmp"
	file, err := os.Create(temp)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	return nil
}
