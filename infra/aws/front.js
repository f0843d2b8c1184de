import cf from 'cloudfront';

// Sends what lasts to the watchers: watches, and streams to nodes. Everything else goes to the function, which is the
// origin that the distribution names. A watcher serves every request, so it does no harm to send it one too many.
function handler(event) {
    const request = event.request;
    if (isWatch(request) || isStream(request.uri)) {
        cf.selectRequestOriginById('watcher');
    }
    return request;
}

// As Kubernetes reads it: 'watch' without a value, and with any value but these, is a watch.
function isWatch(request) {
    if (/^\/(api|apis\/[^/]+)\/[^/]+\/watch\//.test(request.uri)) {
        return true;
    }
    const watch = request.querystring.watch;
    if (!watch) {
        return false;
    }
    const value = (watch.multiValue ? watch.multiValue[0] : watch).value.toLowerCase();
    return value !== 'false' && value !== '0';
}

// The subresources that are served by nodes.
function isStream(uri) {
    return /^\/api\/v1\/(.*\/)?(pods|services|nodes)\/[^/]+\/(attach|exec|log|portforward|proxy)(\/|$)/.test(uri);
}
