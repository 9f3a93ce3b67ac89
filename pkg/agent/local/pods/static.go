// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// MaxManifest is the size in bytes above which the kubelet does not read a manifest.
const MaxManifest = 10 << 20

// manifests reads the static pods of a folder, or of a single file, as the kubelet does.
type manifests struct {
	node string

	mu    sync.Mutex
	path  string
	files map[string]manifest
}

// manifest is a file of the folder as it was last read.
type manifest struct {
	size    int64
	changed time.Time
	// pod is nil if the file has no pod.
	pod *Pod
}

func (m *manifests) setPath(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.path != path {
		m.path, m.files = path, nil
	}
}

// pods returns the static pods. It does not read unchanged files again. If the folder cannot be
// read, it returns the last known pods: they still run.
func (m *manifests) pods() []Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.path == "" {
		return nil
	}
	names, err := candidates(m.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		m.files = nil
	case err != nil:
		klog.Background().Error(err, "Cannot read static pods, using the last known ones", "path", m.path)
	default:
		m.refresh(names)
	}
	pods := make([]Pod, 0, len(m.files))
	for _, f := range m.files {
		if f.pod != nil {
			pods = append(pods, *f.pod)
		}
	}
	return pods
}

func (m *manifests) refresh(names []string) {
	files := make(map[string]manifest, len(names))
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		old, known := m.files[name]
		if known && old.size == info.Size() && old.changed.Equal(info.ModTime()) {
			files[name] = old
			continue
		}
		f := manifest{size: info.Size(), changed: info.ModTime()}
		pod, err := readPod(name, m.node)
		if err != nil {
			klog.Background().Error(err, "Cannot read a static pod manifest, its pod counts as unknown", "path", name)
		} else {
			f.pod = &pod
		}
		files[name] = f
	}
	m.files = files
}

// candidates returns the files that the kubelet treats as manifests: all files in the folder whose
// names do not begin with a dot, with any extension.
func candidates(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !IsIgnored(e.Name()) {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	return names, nil
}

func readPod(path, node string) (Pod, error) {
	data, err := ReadManifest(path)
	if err != nil {
		return Pod{}, err
	}
	pod, err := ParseManifest(data, node)
	if err != nil {
		return Pod{}, err
	}
	p := newPod(pod)
	// The kubelet derives this UID from the content of the file, unless the manifest sets a UID.
	p.Static, p.Finished, p.UID, p.ConfigHash = true, false, "", string(pod.UID)
	return p, nil
}

// IsIgnored reports whether the kubelet ignores a file of the static pod folder because of its
// name.
func IsIgnored(name string) bool { return strings.HasPrefix(name, ".") }

// ReadManifest reads a regular file, or the target of a link, unless it is larger than MaxManifest.
func ReadManifest(path string) ([]byte, error) {
	// Opening a named pipe would block.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, MaxManifest+1))
	if err == nil && len(data) > MaxManifest {
		return nil, fmt.Errorf("%s: larger than %d bytes, the kubelet's limit", path, MaxManifest)
	}
	return data, err
}

// ParseManifest returns the pod of a manifest as the API represents it.
func ParseManifest(data []byte, node string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal(data, pod); err != nil {
		return nil, err
	}
	if pod.APIVersion != "v1" || pod.Kind != "Pod" {
		return nil, fmt.Errorf("apiVersion and kind are %q and %q, must be v1 and Pod", pod.APIVersion, pod.Kind)
	}
	if pod.Name == "" {
		return nil, errors.New("metadata.name must be set")
	}
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = node
	return pod, nil
}
