// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command evacuator evacuates the pods of an app that have to flush their state before they stop.
// It needs the rights of ../rbac-evacuator.yaml, and the pods need the annotation
// evacuation.coordination.k8s.io/priority_flush.example.com: "20000".
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/evacuator"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
)

// flusher makes apps flush their state, which takes the given time.
type flusher struct {
	pods  kubernetes.Interface
	takes time.Duration
}

func (f *flusher) evacuate(ctx context.Context, e *evacuator.Evacuation) error {
	const parts = 6
	end := time.Now().Add(f.takes)
	for part := range parts {
		if err := e.Report(ctx, evacuator.Progress{Message: fmt.Sprintf("%d of %d parts are flushed", part, parts), ExpectedFinish: end}); err != nil {
			return err
		}
		select { // where your app would flush a part
		case <-time.After(f.takes / parts):
		case <-ctx.Done(): // cancelled: the pod stays, and your app continues
			return context.Cause(ctx)
		}
	}
	if err := e.Forbid(ctx); err != nil { // an app that has flushed everything would have to start over
		return err
	}
	err := f.pods.CoreV1().Pods(e.Namespace).Delete(ctx, e.PodName, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.PodUID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return e.AwaitDeparture(ctx)
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file; if empty, the service account of this pod is used")
	takes := flag.Duration("takes", time.Minute, "how long it takes to flush an app's state")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	exitOn(err)
	f := &flusher{pods: kubernetes.NewForConfigOrDie(config), takes: *takes}
	v, err := evacuator.New(evacuator.Config{Class: "flush.example.com", Client: versioned.NewForConfigOrDie(config), Handler: f.evacuate})
	exitOn(err)
	exitOn(v.Run(ctx))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
