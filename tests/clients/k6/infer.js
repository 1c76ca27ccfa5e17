// Unary inference at a constant rate of arrivals, then so many calls as fast as they go; finds the service by reflection.
import grpc from 'k6/net/grpc';
import { check } from 'k6';
import encoding from 'k6/encoding';

const client = new grpc.Client();

export const options = {
  scenarios: {
    steady: { executor: 'constant-arrival-rate', rate: 50, timeUnit: '1s', duration: '3s', preAllocatedVUs: 8 },
    // While the machine stalls, k6 drops arrivals; of these it drops none.
    all: { executor: 'shared-iterations', vus: 8, iterations: 100, maxDuration: '2m', startTime: '3s' },
  },
  thresholds: { checks: ['rate==1'], iterations: ['count>=100'] },
};

let connected = false;

export default () => {
  if (!connected) {
    client.connect(__ENV.ADDRESS, { plaintext: true, reflect: true });
    connected = true;
  }
  const answer = client.invoke('inference.GRPCInferenceService/ModelInfer', {
    modelName: 'tiny-embed',
    id: `${__VU}-${__ITER}`,
    inputs: [
      { name: 'TEXT', datatype: 'BYTES', shape: [1, 1], contents: { bytesContents: [encoding.b64encode('web server')] } },
    ],
  });
  check(answer, {
    ok: (a) => a.status === grpc.StatusOK,
    'its own id': (a) => a.message.id === `${__VU}-${__ITER}`,
    '192 floats': (a) => encoding.b64decode(a.message.rawOutputContents[0]).byteLength === 4 * 192,
  });
};
