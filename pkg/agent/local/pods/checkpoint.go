// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/files"
)

// writeDelay is the time between a change and its write: a rollout changes many pods within a
// second. It is also the pause after a failed write, for example when the disk is full.
const writeDelay = time.Second

// Checkpoint has the pods of this node as the API server last reported them. It is stored on disk,
// because an agent that starts while the API server is unreachable needs it.
type Checkpoint struct {
	dir    string
	client kubernetes.Interface
	node   string

	static manifests

	mu   sync.Mutex
	pods []Pod
	// stored is the content of the file; an unchanged file is not written again.
	stored []byte
}

// New returns the checkpoint in a folder, which it creates. If the stored file cannot be read, New
// returns a checkpoint without pods and the error: the caller can use both.
func New(dir string, client kubernetes.Interface, node string) (*Checkpoint, error) {
	c := &Checkpoint{dir: dir, client: client, node: node, static: manifests{node: node}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, fmt.Errorf("create the folder of the stored pods: %w", err)
	}
	var err error
	c.pods, c.stored, err = load(dir)
	return c, err
}

// SetStaticPodPath sets the folder (or file) of the kubelet's static pods. Empty means that the
// kubelet has none.
func (c *Checkpoint) SetStaticPodPath(path string) {
	c.static.setPath(path)
}

// Pods returns the pods of the node, with the static pods that have a manifest now, in the order of
// their names.
func (c *Checkpoint) Pods() []Pod {
	c.mu.Lock()
	known := c.pods
	c.mu.Unlock()
	return merge(known, c.static.pods())
}

// Priorities returns the priorities of the pods that are not finished.
func (c *Checkpoint) Priorities() []int32 {
	var priorities []int32
	for _, p := range c.Pods() {
		if !p.Finished {
			priorities = append(priorities, p.Priority)
		}
	}
	return priorities
}

// Run keeps the checkpoint up to date until the context ends. While the API server is unreachable,
// it keeps the last known pods.
func (c *Checkpoint) Run(ctx context.Context) error {
	ofNode := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", c.node).String()
	}
	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0,
		informers.WithTweakListOptions(ofNode), informers.WithTransform(strip))
	informer := factory.Core().V1().Pods().Informer()
	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	}); err != nil {
		return fmt.Errorf("watch the pods of node %s: %w", c.node, err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	// Wait for the complete first list: before that, the informer may have fewer pods than the
	// file.
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	changed()
	c.follow(ctx, informer.GetStore(), changes)
	return nil
}

// follow applies every change to the pods immediately and writes the file after writeDelay.
func (c *Checkpoint) follow(ctx context.Context, store cache.Store, changes <-chan struct{}) {
	var write <-chan time.Time
	logged := ""
	for {
		select {
		case <-changes:
			c.set(store.List())
			if write == nil {
				write = time.After(writeDelay)
			}
		case <-write:
			write = nil
			err := c.write()
			if err == nil {
				logged = ""
				continue
			}
			// Log each error once: a full disk may stay full for days.
			if text := err.Error(); text != logged {
				logged = text
				klog.FromContext(ctx).Error(err, "Cannot store the pods of the node, the stored file is out of date; will retry", "node", c.node)
			}
			write = time.After(writeDelay)
		case <-ctx.Done():
			if err := c.write(); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot store the pods of the node before the agent ends", "node", c.node)
			}
			return
		}
	}
}

func (c *Checkpoint) set(objects []any) {
	pods := make([]Pod, 0, len(objects))
	for _, o := range objects {
		// Do not rely on the server's field selector: pods of other nodes must not be in the file.
		if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName == c.node {
			pods = append(pods, newPod(pod))
		}
	}
	slices.SortFunc(pods, compare)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods = pods
}

// write stores the pods unless they are unchanged: most changes of a pod affect only its status.
func (c *Checkpoint) write() error {
	c.mu.Lock()
	pods, stored := c.pods, c.stored
	c.mu.Unlock()
	data, err := encode(c.node, pods)
	if err != nil || bytes.Equal(data, stored) {
		return err
	}
	if err := files.Replace(filepath.Join(c.dir, fileName), bytes.NewReader(data), 0o600); err != nil {
		return fmt.Errorf("store the pods: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored = data
	return nil
}

// strip removes unused fields of a pod before it is cached.
func strip(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Annotations: map[string]string{}, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, PriorityClassName: pod.Spec.PriorityClassName,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, key := range []string{corev1.MirrorPodAnnotationKey, annotationConfigHash, annotationConfigSource} {
		if value, found := pod.Annotations[key]; found {
			kept.Annotations[key] = value
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		kept.Spec.InitContainers = append(kept.Spec.InitContainers, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy})
	}
	return kept, nil
}

const (
	fileName    = "pods.json"
	fileVersion = 1
	// damagedSuffix is the suffix that is appended to the name of an unreadable file. Only the last
	// unreadable file is kept.
	damagedSuffix = ".damaged"
)

// file is the content of pods.json.
type file struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	Pods    []Pod  `json:"pods"`
}

func encode(node string, pods []Pod) ([]byte, error) {
	if pods == nil {
		pods = []Pod{} // [] in the file instead of null
	}
	data, err := json.MarshalIndent(file{Version: fileVersion, Node: node, Pods: pods}, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", fileName, err)
	}
	return append(data, '\n'), nil
}

// decode reads a stored file. The name of the node in it does not matter: an agent without a client
// may not know the name, and the pods are identified by their UIDs.
func decode(data []byte) ([]Pod, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	if f.Version != fileVersion {
		return nil, fmt.Errorf("version is %d, must be %d", f.Version, fileVersion)
	}
	return f.Pods, nil
}

// load reads the stored pods. It renames a file that cannot be read, so that a user can examine it
// and the next write does not replace it.
func load(dir string) ([]Pod, []byte, error) {
	path := filepath.Join(dir, fileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the stored pods: %w", err)
	}
	pods, err := decode(data)
	if err == nil {
		return pods, data, nil
	}
	err = fmt.Errorf("stored pods in %s: %w", path, err)
	if aside := os.Rename(path, path+damagedSuffix); aside != nil {
		err = errors.Join(err, aside)
	}
	return nil, nil, err
}
